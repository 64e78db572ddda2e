"""Kubernetes' own control plane on this machine, for tests and for people: etcd, API server, scheduler, controllers."""
