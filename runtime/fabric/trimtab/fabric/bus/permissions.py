"""What the NATS users of a job may do, role by role: the smallest rights under which its real parts work. The accounts
of roles import what they may publish, because rights of users alone do not hold (users/accounts.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

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
from trimtab.fabric.bus.topology import STAGE_ROOT, TASK_CONSUMER, JobTopology


def keeper_rights(*, inbox_prefix: str) -> Rights:
    """The operator makes, follows and deletes what a job has on the bus, in the job's own account. It publishes no
    message of its own: it cannot issue a task, forge a trajectory or move a pointer to weights.
    """
    return Rights(
        publish=(
            "$JS.API.INFO",
            "$JS.API.STREAM.INFO.*",
            "$JS.API.STREAM.CREATE.*",
            "$JS.API.STREAM.UPDATE.*",
            "$JS.API.STREAM.DELETE.*",
            "$JS.API.CONSUMER.INFO.*.*",
            f"$JS.API.CONSUMER.CREATE.*.{TASK_CONSUMER}",
            # Those of stages are known by what they filter: a wildcard stands for a whole name.
            f"$JS.API.CONSUMER.CREATE.*.*.trimtab.*.*.{STAGE_ROOT}.*",
            "$JS.API.CONSUMER.CREATE.*.*.$KV.>",
            "$JS.API.CONSUMER.MSG.NEXT.*.*",
            "$JS.API.CONSUMER.DELETE.*.*",
            # A heartbeat that did not come by following is looked up before its sender counts as lost.
            "$JS.API.DIRECT.GET.*.$KV.>",
        ),
        subscribe=(own_inbox(inbox_prefix),),
    )


def claims_rights(*, inbox_prefix: str) -> Rights:
    """In the system account: to tell servers of accounts, and to have them forget some."""
    return Rights(publish=("$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.DELETE"), subscribe=(own_inbox(inbox_prefix),))


def dataflow_rights(topology: JobTopology, *, inbox_prefix: str) -> Rights:
    """The dataflow issues tasks, reads what trajectories and columns say of themselves, answers trainers, and keeps the
    ledger. It makes no streams: the operator does.
    """
    ledger, trajectories = topology.ledger.name, topology.trajectories.name
    columns = (topology.columns.name,) if topology.stages else ()
    queues = (topology.tasks.name, *((topology.stage_tasks.name,) if topology.stages else ()))
    followed = (topology.members, topology.weights)
    return Rights(
        publish=(
            *stream_lookups(topology),
            *topology.tasks.subjects,
            *map(topology.stage_subject, topology.stages),
            topology.ledger_subject,
            *(f"$JS.API.STREAM.MSG.GET.{stream}" for stream in (ledger, trajectories, *columns, *queues)),
            *(f"$JS.API.STREAM.MSG.DELETE.{queue}" for queue in queues),
            f"$JS.API.CONSUMER.INFO.{topology.tasks.name}.{TASK_CONSUMER}",
            *(
                f"$JS.API.CONSUMER.INFO.{topology.stage_tasks.name}.{topology.stage_consumer_name(stage)}"
                for stage in topology.stages
            ),
            f"$JS.API.STREAM.PURGE.{ledger}",
            f"$JS.API.STREAM.PURGE.{trajectories}",
            *(f"$JS.API.STREAM.PURGE.{stream}" for stream in columns),
            *stream_reads(ledger, trajectories, *columns),
            *key_writes(topology.balance, topology.members),
            *key_reads(topology.balance, topology.members),
            *direct_reads(*followed),
        ),
        subscribe=(own_inbox(inbox_prefix), *change_subscriptions(*followed), topology.all_batches),
        answers=True,
    )


def rollout_rights(topology: JobTopology, *, inbox_prefix: str) -> Rights:
    """Rollout pods take the job's tasks, store its trajectories, say that they are there, and read where the weights
    are. They read neither trajectories nor batches nor the ledger, and write no pointer to weights. In jobs with stages
    they take the tasks of those too, store columns, and read trajectories and columns by their numbers.

    They make no consumers: a user who may make one may have the server deliver to any subject of the job's account,
    into its ledger for one. The operator makes the streams, the buckets and the consumer of tasks.
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
            *_stage_work(topology),
            *key_writes(*written),
            *key_reads(*written, topology.weights),
            *direct_reads(*followed),
        ),
        subscribe=(own_inbox(inbox_prefix), *change_subscriptions(*followed)),
    )


def _stage_work(topology: JobTopology) -> list[str]:
    if not topology.stages:
        return []
    tasks, consumers = topology.stage_tasks.name, [*map(topology.stage_consumer_name, topology.stages)]
    return [
        *(f"$JS.API.CONSUMER.INFO.{tasks}.{consumer}" for consumer in consumers),
        *(f"$JS.API.CONSUMER.MSG.NEXT.{tasks}.{consumer}" for consumer in consumers),
        *(f"$JS.ACK.{tasks}.{consumer}.>" for consumer in consumers),
        *map(topology.column_subject, topology.stages),
        f"$JS.API.DIRECT.GET.{topology.trajectories.name}",
        f"$JS.API.DIRECT.GET.{topology.columns.name}",
    ]


def trainer_rights(topology: JobTopology, *, inbox_prefix: str) -> Rights:
    """Trainers ask for batches, read the trajectories and columns in them by number, say where weights are, and that
    they are there. They take no tasks, store no trajectories, and neither read nor write the ledger.
    """
    columns = (topology.columns.name,) if topology.stages else ()
    return Rights(
        publish=(
            *stream_lookups(topology),
            topology.all_batches,
            f"$JS.API.DIRECT.GET.{topology.trajectories.name}",
            *(f"$JS.API.DIRECT.GET.{stream}" for stream in columns),
            *key_writes(topology.weights, topology.members),
            *key_reads(topology.weights, topology.members),
        ),
        subscribe=(own_inbox(inbox_prefix),),
    )


def tracking_rights(topology: JobTopology, *, inbox_prefix: str) -> Rights:
    """What tells trackers reads what the job says of itself, and writes nothing."""
    followed = (topology.balance, topology.weights, topology.members)
    return Rights(
        publish=(*(f"$JS.API.STREAM.INFO.{bucket.stream}" for bucket in followed), *direct_reads(*followed)),
        subscribe=(own_inbox(inbox_prefix), *change_subscriptions(*followed)),
    )


class _RightsOfRole(Protocol):
    def __call__(self, topology: JobTopology, *, inbox_prefix: str) -> Rights: ...


RIGHTS_OF: Mapping[str, _RightsOfRole] = {
    "dataflow": dataflow_rights,
    "rollout": rollout_rights,
    "trainer": trainer_rights,
    "tracking": tracking_rights,
}


def rights_of(role: str, topology: JobTopology, *, inbox_prefix: str) -> Rights:
    return RIGHTS_OF[role](topology, inbox_prefix=inbox_prefix)
