"""Words for the entries of a catalogue and for the ways through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from trimtab.weights.store.entry import Entry
from trimtab.weights.store.latest import Latest


class Kind(StrEnum):
    """An anchor needs nothing, a delta the version before, and a fold leads over versions that are there too."""

    ANCHOR = "anchor"
    DELTA = "delta"
    FOLD = "fold"


def kind_of(entry: Entry, latest: Latest) -> Kind:
    """Not by the distance of the numbers: trainers may publish every tenth step, and number versions by step."""
    base, target = entry.base, entry.target
    if base is None:
        return Kind.ANCHOR
    # What an earlier epoch published after the base may be of a dead lineage, so only this epoch's versions count.
    between = (other.target for other in latest.catalogue if base < other.target < target)
    return Kind.FOLD if any(position.epoch == target.epoch for position in between) else Kind.DELTA


def route_text(entries: Sequence[Entry], latest: Latest) -> str:
    """Such as: the anchor of version 3 of epoch 1, 2 deltas, 1 fold."""
    counts = Counter(kind_of(entry, latest) for entry in entries)
    anchors = [str(entry) for entry in entries if entry.base is None]
    others = [
        f"{counts[kind]} {kind}{'s' if counts[kind] > 1 else ''}" for kind in (Kind.DELTA, Kind.FOLD) if counts[kind]
    ]
    return ", ".join(anchors + others)
