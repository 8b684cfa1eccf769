"""Leaves whose training rows are added and removed without conditioning from scratch."""
