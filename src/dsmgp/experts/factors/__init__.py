"""Cholesky factors of leaves: how they are kept, and which overlapping leaves share them."""
