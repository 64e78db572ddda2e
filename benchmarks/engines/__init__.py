"""Parts of `benchmarks.engine`."""
