"""Learning hyperparameters: the search over the evidence of leaf GPs, for one family, several kernels, or a metric."""
