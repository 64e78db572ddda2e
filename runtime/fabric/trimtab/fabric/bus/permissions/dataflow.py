"""The dataflow issues tasks, reads what trajectories say of themselves, answers trainers, and keeps the ledger.

It makes no streams: whoever makes or alters one may have it copy any other stream of the account, another job's too.
The operator makes them.
"""

from __future__ import annotations

from trimtab.fabric.bus.rights import (
    Rights,
    bells,
    following,
    looking_up,
    own_inbox,
    reading_keys,
    reading_streams,
    writing_keys,
)
from trimtab.fabric.bus.topology import JobTopology


def dataflow_rights(topology: JobTopology, *, inbox_prefix: str) -> Rights:
    ledger, trajectories = topology.ledger.name, topology.trajectories.name
    followed = (topology.members, topology.weights)
    return Rights(
        publish=(
            *looking_up(topology),
            *topology.tasks.subjects,
            topology.ledger_subject,
            f"$JS.API.STREAM.MSG.GET.{ledger}",
            f"$JS.API.STREAM.PURGE.{ledger}",
            f"$JS.API.STREAM.PURGE.{trajectories}",
            *reading_streams(ledger, trajectories),
            *writing_keys(topology.balance, topology.members),
            *reading_keys(topology.balance, topology.members),
            *following(*followed),
        ),
        subscribe=(own_inbox(inbox_prefix), *bells(*followed), topology.all_batches),
        answers=True,
    )
