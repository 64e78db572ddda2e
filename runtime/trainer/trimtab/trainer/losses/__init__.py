"""Losses, one pure file each."""
