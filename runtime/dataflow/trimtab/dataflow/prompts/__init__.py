"""Prompts: where they are read from, how sources are mixed, and which one is number n of the run."""
