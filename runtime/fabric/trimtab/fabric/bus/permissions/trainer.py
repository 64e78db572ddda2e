"""Trainers ask for batches, read the trajectories in them by number, say where weights are, and that they are there.

They take no tasks, store no trajectories, and neither read nor write the ledger.
"""

from __future__ import annotations

from trimtab.fabric.bus.rights import Rights, looking_up, own_inbox, reading_keys, writing_keys
from trimtab.fabric.bus.topology import JobTopology


def trainer_rights(topology: JobTopology, *, inbox_prefix: str) -> Rights:
    return Rights(
        publish=(
            *looking_up(topology),
            topology.all_batches,
            f"$JS.API.DIRECT.GET.{topology.trajectories.name}",
            *writing_keys(topology.weights, topology.members),
            *reading_keys(topology.weights, topology.members),
        ),
        subscribe=(own_inbox(inbox_prefix),),
    )
