"""Learning curves of the examples: run one for some seeds, keep what it learnt, draw it."""
