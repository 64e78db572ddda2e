"""What the NATS users of a job may do, one file per role: the smallest rights under which its real parts work."""
