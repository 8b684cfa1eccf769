"""The weights of leaves and of hypotheses: bounds and gate, wider predictions at rows with missing values, stacking."""
