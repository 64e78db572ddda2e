"""One container: a process in a sandbox, its command and environment, its probes, restarts and log."""
