"""Selections choose the groups of a batch. One file each."""
