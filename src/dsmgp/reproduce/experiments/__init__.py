"""One module for each experiment of the paper."""
