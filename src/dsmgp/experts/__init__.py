"""The GPs of all leaves at once: evidence and gradients, posteriors, leave-one-out, online updates, on every backend."""
