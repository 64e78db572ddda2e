"""Advantages, one pure file each."""
