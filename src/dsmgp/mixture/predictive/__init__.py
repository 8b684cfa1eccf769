"""The predictive distribution: mixtures of Gaussians, mapped through output warps, at one row or jointly at several."""
