"""The model that is trained, on packed sequences."""
