"""How much wider predictions are outside the training data, calibrated on rows that leaves have not seen."""
