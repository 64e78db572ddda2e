"""Command groups whose commands are imported when they are called: `trimtab validate` needs no server packages."""

from __future__ import annotations

import importlib
from typing import Any

import click


class LazyGroup(click.Group):
    """`modules` says where each command lives, as an attribute of its own name, with `_` for `-`."""

    def __init__(self, *args: Any, modules: dict[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        command = getattr(importlib.import_module(self._modules[cmd_name]), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command
