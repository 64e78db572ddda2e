"""Tries from every role's connection whatever a NATS server can be asked for, and says what worked: `make scan`."""
