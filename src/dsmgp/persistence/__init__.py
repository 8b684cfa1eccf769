"""Model files: a fitted estimator as arrays and a JSON header, and back."""
