"""Agents that somebody else wrote: run as commands, contained by the kernel, and rewarded."""
