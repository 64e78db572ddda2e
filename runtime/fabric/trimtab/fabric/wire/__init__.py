"""The versioned messages that the parts of a job exchange, and their compact binary encoding."""
