"""The protocols that agents speak, one file for each."""
