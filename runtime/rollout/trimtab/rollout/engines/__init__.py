"""Engines behind one HTTP contract, and the client that speaks it."""
