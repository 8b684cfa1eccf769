"""Linear algebra on small dense matrices: LAPACK without the interpreter lock, triangular solves, threads."""
