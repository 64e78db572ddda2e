"""Rollout pods take the job's tasks, store its trajectories, say that they are there, and read where the weights are.

They read neither trajectories nor batches nor the ledger, and write no pointer to weights. They make no consumers:
whoever makes one may have the server deliver to any subject of the account, another job's too.
"""

from __future__ import annotations

from trimtab.fabric.bus.rights import (
    Rights,
    bells,
    following,
    looking_up,
    own_inbox,
    reading_keys,
    writing_keys,
)
from trimtab.fabric.bus.topology import TASK_CONSUMER, JobTopology


def rollout_rights(topology: JobTopology, *, inbox_prefix: str) -> Rights:
    """Streams, buckets and the consumer of tasks must exist already, which the operator sees to."""
    tasks = topology.tasks.name
    written = (topology.members, topology.swaps, topology.hand_backs, topology.quarantine)
    followed = (topology.weights, topology.members)
    return Rights(
        publish=(
            *looking_up(topology),
            f"$JS.API.CONSUMER.INFO.{tasks}.{TASK_CONSUMER}",
            f"$JS.API.CONSUMER.MSG.NEXT.{tasks}.{TASK_CONSUMER}",
            f"$JS.ACK.{tasks}.{TASK_CONSUMER}.>",
            *topology.trajectories.subjects,
            *writing_keys(*written),
            *reading_keys(*written, topology.weights),
            *following(*followed),
        ),
        subscribe=(own_inbox(inbox_prefix), *bells(*followed)),
    )
