"""Parts of `benchmarks.gateway`."""
