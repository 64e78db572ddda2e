"""A typed client of the Kubernetes API for asyncio: calls with deadlines, typed errors, and a consistent store."""
