"""`trimtab weights`: what lies in the store, whether it is sound, and work on it by hand, with the settings of pods."""

from __future__ import annotations

import click

from trimtab.cli.lazy import LazyGroup

_COMMANDS = {name: f"{__name__}.{name}" for name in ("export", "fold", "gc", "inspect", "keygen", "pull", "verify")}


@click.command(cls=LazyGroup, modules=_COMMANDS)
def weights() -> None:
    """Inspect, verify, fold, collect, pull and export published weights.

    The store and the keys are found as in pods: TRIMTAB_OBJECT_STORE__BUCKET and its like and TRIMTAB_WEIGHTS__… in the
    environment, or files in the folder that TRIMTAB_SECRETS_DIR names.
    """
