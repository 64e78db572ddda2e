"""Executors: what touches the world."""
