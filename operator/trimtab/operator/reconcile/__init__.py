"""Reconcilers: they bring RLJobs, RolloutPools and Trainers of an API server to what their plans ask for."""
