"""What the benchmarks on a GPU share."""
