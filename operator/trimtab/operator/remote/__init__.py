"""Rollout pools whose pods are in another cluster: how it is reached, what is made there, and what is done while it is
away.
"""
