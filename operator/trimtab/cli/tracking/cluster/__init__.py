"""What tells trackers in a cluster: a pod of the job that listens to it and keeps how far each tracker has come."""
