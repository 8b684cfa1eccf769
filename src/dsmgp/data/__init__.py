"""Tables on their way in and out: frames, files, the schema of their columns, Parquet datasets."""
