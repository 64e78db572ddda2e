"""Filters choose trajectories after rollout. One file each."""
