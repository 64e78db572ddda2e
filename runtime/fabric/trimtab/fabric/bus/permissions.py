"""What a NATS user may do that rollout pods of one job dial with, and nothing else: take the job's tasks, store its
trajectories, say that they are there, and read where the weights are.

    python -m trimtab.fabric.bus.permissions --namespace NAMESPACE --job JOB --inbox-prefix PREFIX

prints it as the server's configuration has it, for a user whose pods are set up with TRIMTAB_NATS__INBOX_PREFIX=PREFIX.
"""

from __future__ import annotations

import json
from typing import Any

import click

from trimtab.fabric.bus.topology import BucketSpec, JobTopology
from trimtab.fabric.settings import NatsSettings

ROLLOUT_CONSUMER = "rollout"
_EVERYBODYS = NatsSettings.model_fields["inbox_prefix"].default


def rollout_permissions(topology: JobTopology, *, inbox_prefix: str) -> dict[str, Any]:
    """The `permissions` of the user. Streams and buckets must exist already, which the dataflow sees to."""
    if inbox_prefix == _EVERYBODYS:
        raise ValueError(
            f"inbox_prefix: {_EVERYBODYS} is where everybody's answers arrive; give the user one of its own"
        )
    tasks = topology.tasks.name
    names = [*(spec.name for spec in topology.streams), *(spec.stream for spec in topology.buckets)]
    publish = [
        *(f"$JS.API.STREAM.INFO.{name}" for name in names),
        f"$JS.API.CONSUMER.INFO.{tasks}.{ROLLOUT_CONSUMER}",
        f"$JS.API.CONSUMER.CREATE.{tasks}.{ROLLOUT_CONSUMER}",
        f"$JS.API.CONSUMER.MSG.NEXT.{tasks}.{ROLLOUT_CONSUMER}",
        f"$JS.ACK.{tasks}.{ROLLOUT_CONSUMER}.>",
        *topology.trajectories.subjects,
        *(f"$KV.{bucket.name}.>" for bucket in _written(topology)),
        *(f"$JS.API.DIRECT.GET.{bucket.stream}.>" for bucket in (*_written(topology), topology.weights)),
    ]
    for bucket in (topology.weights, topology.members):
        publish += [
            f"$JS.API.CONSUMER.CREATE.{bucket.stream}.*.$KV.{bucket.name}.>",
            f"$JS.API.CONSUMER.MSG.NEXT.{bucket.stream}.*",
            f"$JS.API.CONSUMER.DELETE.{bucket.stream}.*",
        ]
    return {"publish": {"allow": publish}, "subscribe": {"allow": [f"{inbox_prefix}.>"]}}


def _written(topology: JobTopology) -> tuple[BucketSpec, ...]:
    return (topology.members, topology.swaps, topology.hand_backs, topology.quarantine)


@click.command()
@click.option("--namespace", required=True)
@click.option("--job", required=True)
@click.option("--inbox-prefix", required=True)
def main(namespace: str, job: str, inbox_prefix: str) -> None:
    """Print what a NATS user for rollout pods of the job may do."""
    try:
        permissions = rollout_permissions(JobTopology(namespace, job), inbox_prefix=inbox_prefix)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    click.echo(json.dumps(permissions, indent=2))


if __name__ == "__main__":
    main()
