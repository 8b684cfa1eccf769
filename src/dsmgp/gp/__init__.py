"""The GP prior of a leaf: kernels, means, noise, priors of the hyperparameters, scaling of inputs and outputs."""
