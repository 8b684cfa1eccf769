"""What a fit chooses by leave-one-out: the kernel, the scaling of outputs, coordinates, the mean."""
