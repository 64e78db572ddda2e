"""The entry point."""

from __future__ import annotations

import click

from trimtab.cli.lazy import LazyGroup

_COMMANDS = {
    name: f"trimtab.cli.{name}"
    for name in (
        "backup",
        "balance",
        "data",
        "dev",
        "doctor",
        "evaluation",
        "gateway",
        "graph",
        "init",
        "push",
        "quarantine",
        "report",
        "restore",
        "run",
        "samples",
        "top",
        "ui",
        "validate",
        "weights",
    )
} | {"track": "trimtab.cli.tracking.command", "why-slow": "trimtab.cli.why_slow"}


@click.command(cls=LazyGroup, modules=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trimtab")
def main() -> None:
    """Reinforcement learning of LLM agents as a Kubernetes workload."""


if __name__ == "__main__":
    main()
