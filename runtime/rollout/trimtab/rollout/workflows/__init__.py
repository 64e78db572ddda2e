"""Agent programs: what happens in one episode."""
