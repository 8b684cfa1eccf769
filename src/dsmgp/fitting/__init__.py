"""From rows to a fitted model: choosing the kernel, learning hyperparameters, growing the tree, online updates."""
