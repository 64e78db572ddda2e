"""What an engine calls the weights we give it: epoch and version, as in `3.17`.

The version alone would not do. A trainer that went back to a checkpoint repeats version numbers with other weights, and
only the epoch tells them apart.
"""

from __future__ import annotations

import re

from trimtab.weights.store.position import Position

BASE = Position(epoch=0, version=0)
"""The model the job began with, which no trainer published: the first one claims epoch 1."""

_BASE_LABEL = "0"
"""What an engine calls the weights that it was started with."""
_LABEL = re.compile(r"([1-9][0-9]{0,15})\.(0|[1-9][0-9]{0,15})")


def label_of(position: Position) -> str:
    return _BASE_LABEL if position == BASE else f"{position.epoch}.{position.version}"


def position_of(label: str) -> Position | None:
    """None for a name that is not ours, such as SGLang's `default`."""
    if label == _BASE_LABEL:
        return BASE
    match = _LABEL.fullmatch(label)
    return Position(epoch=int(match[1]), version=int(match[2])) if match else None
