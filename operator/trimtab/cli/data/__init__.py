"""`trimtab data`: prompts from the sets that people have on disk."""

from __future__ import annotations

import click

from trimtab.cli.lazy import LazyGroup

_COMMANDS = {name: f"{__name__}.{name}" for name in ("convert",)}


@click.command(cls=LazyGroup, modules=_COMMANDS)
def data() -> None:
    """Turn sets of problems into prompts."""
