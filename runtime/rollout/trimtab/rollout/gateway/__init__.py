"""The endpoint for agents that we did not write."""
