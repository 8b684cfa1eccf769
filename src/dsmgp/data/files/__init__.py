"""Tables in files, and what their texts mean."""
