"""Sampling from one policy: completions, the versions of their tokens, and how fresh the weights are."""
