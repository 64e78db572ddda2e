"""A verified copy of the weights in host memory, changed from one version to the next all at once or not at all."""
