"""Evaluation on held-out prompts: the same workers and the same way back, and never a training batch."""
