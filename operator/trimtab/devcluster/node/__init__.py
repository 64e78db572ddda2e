"""One development node: its process, its Node object, and the part of a kubelet that keeps a worker for each pod."""
