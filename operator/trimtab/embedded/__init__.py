"""Servers that Trimtab starts itself on one machine: NATS, an S3 store, and a Kubernetes control plane."""
