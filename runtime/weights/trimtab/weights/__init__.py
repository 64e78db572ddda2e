"""Weights on their way from trainers to pools: immutable objects, a manifest, and a pointer to the newest."""
