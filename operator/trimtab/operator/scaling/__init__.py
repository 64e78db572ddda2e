"""Joins a job's plan and the autoscaler's decision, which do not know each other."""
