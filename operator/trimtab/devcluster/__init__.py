"""A development node: bound pods of a real API server run as local processes, without containers."""
