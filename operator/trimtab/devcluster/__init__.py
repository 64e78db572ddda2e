"""A cluster on one machine: Kubernetes' scheduler and controllers, and a node that runs pods as local processes."""
