"""Fits to Parquet files that may be larger than memory, and changes of their rows."""
