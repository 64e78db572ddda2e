"""`trimtab weights`: what lies in the store, whether it is sound, and work on it by hand. Settings are those of pods.

Its commands are imported when they are called: only some need the codec, and none of them anything of the operator.
"""

from __future__ import annotations

import importlib

import click

_COMMANDS = ("fold", "gc", "inspect", "keygen", "pull", "verify")


class _LazyGroup(click.Group):
    """A group whose commands live in modules of the same name below this one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.command(cls=_LazyGroup)
def weights() -> None:
    """Inspect, verify, fold, collect and pull published weights.

    The store and the keys are found as in pods: TRIMTAB_OBJECT_STORE__BUCKET and its like and TRIMTAB_WEIGHTS__… in the
    environment, or files in the folder that TRIMTAB_SECRETS_DIR names.
    """
