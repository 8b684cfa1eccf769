"""The rows of a fit: as they arrive, scaled for the leaf GPs, and read from a dataset."""
