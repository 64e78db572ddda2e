"""Batches in, weights out: knows no rollout worker and no other trainer."""
