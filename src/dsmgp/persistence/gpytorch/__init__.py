"""GPyTorch modules in model files, and files of format 1, which described all kernels as such."""
