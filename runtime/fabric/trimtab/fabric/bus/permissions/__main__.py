"""Prints the rights of a user for pods of one role of one job, as the server's configuration has them.

    python -m trimtab.fabric.bus.permissions --namespace NAMESPACE --job JOB --inbox-prefix PREFIX [--role ROLE]

The pods are set up with TRIMTAB_NATS__INBOX_PREFIX=PREFIX, and TRIMTAB_NATS__MAKES_STREAMS=false.
"""

from __future__ import annotations

import json

import click

from trimtab.fabric.bus.permissions.roles import RIGHTS_OF, rights_of
from trimtab.fabric.bus.topology import JobTopology


@click.command()
@click.option("--namespace", required=True)
@click.option("--job", required=True)
@click.option("--inbox-prefix", required=True)
@click.option("--role", type=click.Choice(sorted(RIGHTS_OF)), default="rollout", show_default=True)
def main(namespace: str, job: str, inbox_prefix: str, role: str) -> None:
    """Print what a NATS user for pods of the job may do."""
    try:
        rights = rights_of(role, JobTopology(namespace, job), inbox_prefix=inbox_prefix)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    click.echo(json.dumps(rights.configuration(), indent=2))


if __name__ == "__main__":
    main()
