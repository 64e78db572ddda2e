"""Pods as Kubernetes has them: rendered from plans with what they need around them, and read back as plans see them."""
