"""The entry point. Commands are imported when they are called: `trimtab validate` needs no server packages."""

from __future__ import annotations

import importlib

import click

_COMMANDS = {
    "balance": "trimtab.cli.balance",
    "dev": "trimtab.cli.dev",
    "run": "trimtab.cli.run",
    "validate": "trimtab.cli.validate",
    "weights": "trimtab.cli.weights",
}


class LazyGroup(click.Group):
    """A group whose commands live in modules of the same name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = getattr(importlib.import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trimtab")
def main() -> None:
    """Reinforcement learning of LLM agents as a Kubernetes workload."""


if __name__ == "__main__":
    main()
