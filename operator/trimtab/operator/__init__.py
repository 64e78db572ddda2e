"""Turns RLJobs into running pods: pure plans, and the executors that carry them out."""
