"""One block to bytes and back, whatever the mode. Which mode is chosen here, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from trimtab.weights.codec import compact, dense, fast, whole
from trimtab.weights.codec.change import Bytes, Change, Elements, Positions, Sparse, Whole, elements
from trimtab.weights.codec.streams import DamagedPayload
from trimtab.weights.layout import ElementType

_TABLES_PAY_FROM = 2048
"""Changes below which the tables of compact mode take more room than they save."""


class Mode(StrEnum):
    """How a payload was made. `whole` needs no base."""

    FAST = "fast"
    COMPACT = "compact"
    DENSE = "dense"
    WHOLE = "whole"


class Codec(StrEnum):
    """What a publisher asks for: least time, least bytes, or what suits each block."""

    AUTO = "auto"
    FAST = "fast"
    COMPACT = "compact"


@dataclass(frozen=True)
class Encoded:
    """A block's change, ready to be stored."""

    mode: Mode
    payload: bytes


def encode_change(base: Bytes, change: Change, element: ElementType, *, codec: Codec = Codec.AUTO) -> Encoded:
    """`base` is the block before the change."""
    old = _read_only(base, element)
    if isinstance(change, Whole):
        new = _read_only(change.content, element)
        encoded = Encoded(Mode.DENSE, dense.encode(old, new, element))
        # Content that has nothing to do with the old one differs from it by large numbers.
        if len(encoded.payload) * 2 > base.nbytes:
            alone = encode_whole(change.content, element)
            return min(encoded, alone, key=lambda candidate: len(candidate.payload))
        return encoded
    if element.exponent_shift and _compact_suits(change, codec):
        return Encoded(Mode.COMPACT, compact.encode(old, change, element))
    return Encoded(Mode.FAST, fast.encode(old, change, element))


def encode_whole(content: Bytes, element: ElementType) -> Encoded:
    return Encoded(Mode.WHOLE, whole.encode(_read_only(content, element), element))


def decode_block(
    mode: Mode, base: Bytes | None, payload: bytes | memoryview, element: ElementType, out: Bytes
) -> Positions | None:
    """Fills `out` with the new content. Returns where it differs from the base, None when that is not known.

    Raises DamagedPayload for what does not decode; what decodes to something else only a digest can tell.
    """
    target = elements(out, element.width)
    if mode is Mode.WHOLE:
        whole.decode(payload, element, target)
        return None
    if base is None:
        raise DamagedPayload(f"mode {mode} needs the block it was made from")
    old = _read_only(base, element)
    if mode is Mode.DENSE:
        dense.decode(old, payload, element, target)
        return None
    np.copyto(out, base)
    if mode is Mode.FAST:
        return fast.decode(old, payload, element, target)
    if not element.exponent_shift:
        raise DamagedPayload(f"mode {mode} is for 16-bit floats")
    return compact.decode(old, payload, element, target)


def _compact_suits(change: Sparse, codec: Codec) -> bool:
    return codec is Codec.COMPACT or (codec is Codec.AUTO and change.positions.size >= _TABLES_PAY_FROM)


def _read_only(content: Bytes, element: ElementType) -> Elements:
    """Mapped files are read-only; with everything else read-only too each kernel is compiled for one kind of array."""
    view = elements(content, element.width)
    view.flags.writeable = False
    return view
