"""`python -m trimtab.operator`: reconciles the RLJobs of a cluster, or of some namespaces."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from trimtab.fabric.logs import configure_logs
from trimtab.fabric.pod import EXIT_MISCONFIGURED
from trimtab.fabric.settings import SettingsError, load_settings, secret_values
from trimtab.kube.access import AccessError, load_access
from trimtab.operator.own_secrets import SecretUnusable
from trimtab.operator.running import run_operator
from trimtab.operator.settings import OperatorSettings


@click.command()
@click.option("--namespace", "namespaces", multiple=True, help="Work in this namespace only; may be repeated.")
@click.option("--image", help="Image of all pods of jobs; TRIMTAB_IMAGES__… set one by role.")
@click.option("--port", type=int, help="Where /metrics, /healthz and /readyz are served.")
def main(namespaces: tuple[str, ...], image: str | None, port: int | None) -> None:
    """Look after RLJobs until SIGTERM. Everything else is set by TRIMTAB_… variables, as for pods."""
    given = {
        "TRIMTAB_NAMESPACES": ",".join(namespaces) or None,
        "TRIMTAB_IMAGES": image,
        "TRIMTAB_PROBES__PORT": None if port is None else str(port),
    }
    environment = {**os.environ, **{name: value for name, value in given.items() if value is not None}}
    try:
        settings = load_settings(environment, OperatorSettings)
        access = load_access()
    except (SettingsError, AccessError) as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_MISCONFIGURED)
    configure_logs(settings.logs, stream=sys.stderr, secrets=secret_values(settings), operator=settings.identity)
    try:
        asyncio.run(run_operator(settings, access))
    except SecretUnusable as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_MISCONFIGURED)


if __name__ == "__main__":
    main()
