"""Which objects belong to which checkpoint, and which of them may be deleted."""

from __future__ import annotations

import re
from collections.abc import Iterable

CHECKPOINTS = "checkpoints"
_FOLDER = re.compile(rf"^{CHECKPOINTS}/(\d{{12}})-(\d{{12}})/")


def folder_of(*, step: int, epoch: int) -> str:
    """The epoch is in it because a trainer that should be dead may write the same step again, beside its successor."""
    return f"{CHECKPOINTS}/{step:012d}-{epoch:012d}"


def obsolete(names: Iterable[str], *, kept: Iterable[str], step: int, epoch: int) -> list[str]:
    """What the trainer of `epoch` may delete once it has committed `step`; `kept` are the indexes in the pointer.

    All of other checkpoints: older ones, and what a crash left of some that were never committed. But nothing of a
    higher epoch, which may be a successor's that is being written right now, and nothing that is not a checkpoint's.
    """
    folders = {name.rpartition("/")[0] for name in kept}
    doomed = []
    for name in names:
        found = _FOLDER.match(name)
        if found is None or name.rpartition("/")[0] in folders:
            continue
        its_step, its_epoch = int(found[1]), int(found[2])
        if its_epoch < epoch or (its_epoch == epoch and its_step <= step):
            doomed.append(name)
    return doomed
