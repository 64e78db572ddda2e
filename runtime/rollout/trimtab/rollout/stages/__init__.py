"""Stages: what is computed about rows between rollout and trainer, by pods of a pool."""
