"""Hyperparameters for every leaf, tied to those of similar leaves."""
