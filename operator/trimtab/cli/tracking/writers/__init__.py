"""One module for each tracker; none imports its library before it is asked to write."""
