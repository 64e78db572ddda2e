"""`trimtab dev`: what a developer of manifests or of Trimtab itself starts on a laptop."""

from __future__ import annotations

import click

from trimtab.cli.lazy import LazyGroup

_COMMANDS = {name: f"trimtab.cli.dev_{name}" for name in ("cluster", "preempt", "up")}


@click.command(cls=LazyGroup, modules=_COMMANDS)
def dev() -> None:
    """Development servers on this machine."""
