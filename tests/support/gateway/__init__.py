"""Sessions and agents for tests of the gateway."""
