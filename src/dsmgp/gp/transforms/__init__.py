"""Maps between the user's units and those of the leaf GPs: scaling, warps, metric, network."""
