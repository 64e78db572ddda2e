"""Keeps engines on the newest weights: follows what trainers announce, fetches, and swaps in turns."""
