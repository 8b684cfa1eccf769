"""Datasets in Parquet files, which may be larger than memory: reading, predictions, writing."""
