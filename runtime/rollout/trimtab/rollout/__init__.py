"""Rollout-as-a-Service: takes tasks, runs agents against an engine, returns trajectories, refreshes weights."""
