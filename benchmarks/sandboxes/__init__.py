"""What benchmarks.sandbox compares: ways to run a program that somebody else wrote."""
