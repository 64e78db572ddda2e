"""`trimtab weights keygen`: the pair of keys that a job's weights are signed and checked with."""

from __future__ import annotations

import click

from trimtab.fabric.signing import Signer


@click.command()
def keygen() -> None:
    """Print a new signing key as two lines of environment.

    The first is a SECRET for trainers, the second is for pools. This is the only command that prints a secret.
    """
    signer = Signer.generate()
    click.echo(f"TRIMTAB_WEIGHTS__SIGNING_SEED={signer.reveal_seed()}")
    click.echo(f"TRIMTAB_WEIGHTS__PUBLIC_KEYS={signer.public_text}")
    click.echo(
        "The first line is a secret: whoever has it can make pools load anything. Put it into a Secret that only "
        "trainers mount, and keep it nowhere else. Pools need the second line alone.",
        err=True,
    )
