"""A real Kubernetes control plane (etcd and kube-apiserver) on this machine, for tests and for people."""
