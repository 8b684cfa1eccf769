"""What has nothing to do with Gaussian processes: arrays, checks of input, dates, files, warnings."""
