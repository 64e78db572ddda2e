"""What the NATS users of a job may do, role by role: the smallest rights under which its real parts work.

    python -m trimtab.fabric.bus.permissions --namespace NAMESPACE --job JOB --inbox-prefix PREFIX [--role ROLE]

prints the rights of a user for pods of one role of one job, as the server's configuration has them. The pods are set up
with TRIMTAB_NATS__INBOX_PREFIX=PREFIX, and TRIMTAB_NATS__MAKES_STREAMS=false.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

import click

from trimtab.fabric.bus.rights import (
    Rights,
    change_subscriptions,
    direct_reads,
    key_reads,
    key_writes,
    own_inbox,
    stream_lookups,
    stream_reads,
)
from trimtab.fabric.bus.topology import TASK_CONSUMER, JobTopology


def operator_rights(*, inbox_prefix: str) -> Rights:
    """The operator makes, follows and deletes what all jobs have on the bus. It publishes no message of its own: it
    cannot issue a task, forge a trajectory or move a pointer to weights.
    """
    return Rights(
        publish=(
            "$JS.API.STREAM.INFO.*",
            "$JS.API.STREAM.CREATE.*",
            "$JS.API.STREAM.UPDATE.*",
            "$JS.API.STREAM.DELETE.*",
            f"$JS.API.CONSUMER.INFO.*.{TASK_CONSUMER}",
            f"$JS.API.CONSUMER.CREATE.*.{TASK_CONSUMER}",
            "$JS.API.CONSUMER.CREATE.*.*.$KV.>",
            "$JS.API.CONSUMER.MSG.NEXT.*.*",
            "$JS.API.CONSUMER.DELETE.*.*",
        ),
        subscribe=(own_inbox(inbox_prefix),),
    )


def dataflow_rights(topology: JobTopology, *, inbox_prefix: str) -> Rights:
    """The dataflow issues tasks, reads what trajectories say of themselves, answers trainers, and keeps the ledger.

    It makes no streams: a user who may make or alter one may have it copy any other stream of the account, another
    job's too. The operator makes them.
    """
    ledger, trajectories = topology.ledger.name, topology.trajectories.name
    followed = (topology.members, topology.weights)
    return Rights(
        publish=(
            *stream_lookups(topology),
            *topology.tasks.subjects,
            topology.ledger_subject,
            f"$JS.API.STREAM.MSG.GET.{ledger}",
            f"$JS.API.STREAM.PURGE.{ledger}",
            f"$JS.API.STREAM.PURGE.{trajectories}",
            *stream_reads(ledger, trajectories),
            *key_writes(topology.balance, topology.members),
            *key_reads(topology.balance, topology.members),
            *direct_reads(*followed),
        ),
        subscribe=(own_inbox(inbox_prefix), *change_subscriptions(*followed), topology.all_batches),
        answers=True,
    )


def rollout_rights(topology: JobTopology, *, inbox_prefix: str) -> Rights:
    """Rollout pods take the job's tasks, store its trajectories, say that they are there, and read where the weights
    are. They read neither trajectories nor batches nor the ledger, and write no pointer to weights.

    They make no consumers: a user who may make one may have the server deliver to any subject of the account, another
    job's too. The operator makes the streams, the buckets and the consumer of tasks.
    """
    tasks = topology.tasks.name
    written = (topology.members, topology.swaps, topology.hand_backs, topology.quarantine)
    followed = (topology.weights, topology.members)
    return Rights(
        publish=(
            *stream_lookups(topology),
            f"$JS.API.CONSUMER.INFO.{tasks}.{TASK_CONSUMER}",
            f"$JS.API.CONSUMER.MSG.NEXT.{tasks}.{TASK_CONSUMER}",
            f"$JS.ACK.{tasks}.{TASK_CONSUMER}.>",
            *topology.trajectories.subjects,
            *key_writes(*written),
            *key_reads(*written, topology.weights),
            *direct_reads(*followed),
        ),
        subscribe=(own_inbox(inbox_prefix), *change_subscriptions(*followed)),
    )


def trainer_rights(topology: JobTopology, *, inbox_prefix: str) -> Rights:
    """Trainers ask for batches, read the trajectories in them by number, say where weights are, and that they are
    there. They take no tasks, store no trajectories, and neither read nor write the ledger.
    """
    return Rights(
        publish=(
            *stream_lookups(topology),
            topology.all_batches,
            f"$JS.API.DIRECT.GET.{topology.trajectories.name}",
            *key_writes(topology.weights, topology.members),
            *key_reads(topology.weights, topology.members),
        ),
        subscribe=(own_inbox(inbox_prefix),),
    )


class _RightsOfRole(Protocol):
    def __call__(self, topology: JobTopology, *, inbox_prefix: str) -> Rights: ...


RIGHTS_OF: Mapping[str, _RightsOfRole] = {
    "dataflow": dataflow_rights,
    "rollout": rollout_rights,
    "trainer": trainer_rights,
}


def rights_of(role: str, topology: JobTopology, *, inbox_prefix: str) -> Rights:
    return RIGHTS_OF[role](topology, inbox_prefix=inbox_prefix)


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
