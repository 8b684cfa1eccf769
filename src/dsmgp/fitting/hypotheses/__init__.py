"""Small tables: fits under several hypotheses, stacked by cross-validation."""
