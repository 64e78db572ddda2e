"""Curators choose prompts before rollout. One file each."""
