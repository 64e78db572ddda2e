"""Worlds of text to act in: one that is shipped, and clients of servers that have others."""
