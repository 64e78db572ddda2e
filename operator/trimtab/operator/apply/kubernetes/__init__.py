"""The executor for a cluster: pods, ConfigMaps, Secrets and Services of an API server, made from plans."""
