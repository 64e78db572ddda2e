"""The parts of `python -m benchmarks.weight_delta`: step pairs, other systems' formats, limits, sizes and speeds."""
