"""Executes what a model wrote, where it can harm nothing: no network, no credentials, no view of the host."""
