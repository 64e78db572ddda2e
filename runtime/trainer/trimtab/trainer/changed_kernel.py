"""Compares weights with what was published last, on the GPU, in one pass over both: it writes down what differs and
takes it over into the old copy. This module needs Triton; only a trainer on a GPU imports it.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

CHUNK = 1024
"""Elements that one program compares. Of 1,024 to 8,192 the quickest on an H200."""
ALIGNED = tl.constexpr(16)
"""Where all chunks begin at multiples of it, loads are as wide as they can be."""
_NOT_A_NUMBER = tl.constexpr(0x7FC0)


@triton.jit  # type: ignore[untyped-decorator]
def _compare(  # type: ignore[no-untyped-def] # a kernel has no types that Python knows
    sources, olds, source_of, first_of, length_of, place_of, positions, values, taken, begins, counts, capacity,
    source_type: tl.constexpr, published: tl.constexpr, bits: tl.constexpr, rounds: tl.constexpr, aligned: tl.constexpr,
    chunk: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    tensor = tl.load(source_of + program)
    first = tl.load(first_of + program)
    length = tl.load(length_of + program)
    inside = tl.arange(0, chunk)
    there = inside < length
    source = tl.load(sources + tensor).to(tl.pointer_type(source_type)) + first
    old = tl.load(olds + tensor).to(tl.pointer_type(bits)) + first
    if aligned:
        source, old = tl.multiple_of(source, ALIGNED), tl.multiple_of(old, ALIGNED)
    weights = tl.load(source + inside, mask=there, other=0.0)
    if rounds:
        # To the nearest, ties to even, as torch does.
        wide = weights.to(tl.int32, bitcast=True)
        rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
        new_bits = tl.where(weights != weights, _NOT_A_NUMBER, rounded).to(bits)
    else:
        new_bits = weights.to(published).to(bits, bitcast=True)
    old_bits = tl.load(old + inside, mask=there, other=0)
    differs = ((new_bits != old_bits) & there).to(tl.int32)
    count = tl.sum(differs, axis=0)
    begin = tl.atomic_add(taken, count.to(tl.int64))
    # What finds no room stays different, and is found in the next round.
    fits = begin + count <= capacity
    if count > 0:
        kept = tl.where(fits, differs, 0) > 0
        place = begin + tl.cumsum(differs, axis=0) - 1
        tl.store(positions + place, tl.load(place_of + program) + inside, mask=kept)
        tl.store(values + place, new_bits, mask=kept)
        tl.store(old + inside, new_bits, mask=kept)
    tl.store(begins + program, begin)
    tl.store(counts + program, tl.where(fits, count, 0))


_BITS = {2: (torch.int16, tl.int16), 4: (torch.int32, tl.int32)}
_FLOATS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def comparable(source: torch.Tensor, *, published: torch.dtype) -> bool:
    return source.is_contiguous() and source.dtype in _FLOATS and published in _FLOATS


class Room:
    """What a comparison writes to. `capacity` changes fit in at a time."""

    def __init__(self, *, capacity: int, published: torch.dtype, device: torch.device) -> None:
        self.capacity = capacity
        self.published = published
        self.positions = torch.empty(capacity, dtype=torch.int32, device=device)
        self.values = torch.empty(capacity, dtype=_BITS[published.itemsize][0], device=device)
        self.taken = torch.zeros(1, dtype=torch.int64, device=device)


def launch(
    sources: torch.Tensor, olds: torch.Tensor, chunks: torch.Tensor, room: Room, *, source: torch.dtype, aligned: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compare once. `sources` and `olds` are addresses of tensors; `chunks` has a row for each program: which tensor,
    from which element, how many, and the position of the first in its block. Gives where each program's changes begin
    in the room, and how many there are.
    """
    programs = chunks.shape[1]
    begins = torch.empty(programs, dtype=torch.int64, device=chunks.device)
    counts = torch.empty(programs, dtype=torch.int32, device=chunks.device)
    room.taken.zero_()
    _compare[(programs,)](
        sources, olds, chunks[0], chunks[1], chunks[2], chunks[3], room.positions, room.values, room.taken, begins,
        counts, room.capacity, source_type=_FLOATS[source], published=_FLOATS[room.published],
        bits=_BITS[room.published.itemsize][1], rounds=(source, room.published) == (torch.float32, torch.bfloat16),
        aligned=aligned, chunk=CHUNK, num_warps=4,
    )  # fmt: skip
    return begins, counts
