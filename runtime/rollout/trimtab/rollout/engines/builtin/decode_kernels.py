"""The kernels of a decode step on a GPU, one token of each row: each does what would take several of torch's. Keys and
values are found at the row's own address, so that a step has one shape, however long its rows are and wherever they
lie. This module needs Triton; only an engine on a GPU imports it.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

_BLOCK = 64
"""Tokens that a program looks at in one turn."""
_WIDE = 1024
_LEAST_GROUP = 16
"""Rows that a matrix product of the GPU has at least."""
_PROGRAMS = 512
"""As many at least keep a large GPU busy: few rows are split into parts."""
_MOST_SPLITS = 16
_ELEMENTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(hidden, change, weight, normed, epsilon, size: tl.constexpr, width: tl.constexpr, adds: tl.constexpr):  # type: ignore[no-untyped-def] # a kernel has no types that Python knows
    row = tl.program_id(0)
    inside = tl.arange(0, width)
    there = inside < size
    kept = tl.load(hidden + row * size + inside, mask=there, other=0.0)
    if adds:
        # Rounded to what the next layer reads, before it is squared.
        kept = (kept.to(tl.float32) + tl.load(change + row * size + inside, mask=there, other=0.0)).to(kept.dtype)
        tl.store(hidden + row * size + inside, kept, mask=there)
    value = kept.to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, axis=0) / size + epsilon)
    tl.store(normed + row * size + inside, value * tl.load(weight + inside, mask=there, other=0.0), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _gated(gate_up, product, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    inside = tl.program_id(1) * block + tl.arange(0, block)
    there = inside < size
    gate = tl.load(gate_up + row * 2 * size + inside, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + inside, mask=there, other=0.0)
    tl.store(product + row * size + inside, gate * tl.sigmoid(gate) * up, mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _row(places, row, rows, layer, head, element: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many tokens the row has, and where its keys and values of this layer and head begin."""
    length = tl.load(places + row)
    address = tl.load(places + rows + row).to(tl.pointer_type(element))
    layer_stride = tl.load(places + 2 * rows + row)
    head_stride = tl.load(places + 3 * rows + row)
    keys = address + layer * layer_stride + head * head_stride
    return length, keys, keys + layer_stride // 2


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_and_keep(  # type: ignore[no-untyped-def]
    projected, query_norm, key_norm, cosine, sine, places, queries, rows, layer, epsilon,
    heads: tl.constexpr, kv_heads: tl.constexpr, half: tl.constexpr, width: tl.constexpr, norms: tl.constexpr,
    element: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    size = 2 * half
    inside = tl.arange(0, width)
    there = inside < half
    source = projected + (row * (heads + 2 * kv_heads) + head) * size + inside
    first = tl.load(source, mask=there, other=0.0).to(tl.float32)
    second = tl.load(source + half, mask=there, other=0.0).to(tl.float32)
    length, keys, values = _row(places, row, rows, layer, (head - heads) % kv_heads, element)
    if head < heads + kv_heads:
        if norms:
            weight = query_norm if head < heads else key_norm
            scale = tl.rsqrt((tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)) / size + epsilon)
            first = first * scale * tl.load(weight + inside, mask=there, other=0.0)
            second = second * scale * tl.load(weight + half + inside, mask=there, other=0.0)
        turned = tl.load(cosine + row * half + inside, mask=there, other=0.0).to(tl.float32)
        crossed = tl.load(sine + row * half + inside, mask=there, other=0.0).to(tl.float32)
        first, second = first * turned - second * crossed, second * turned + first * crossed
    if head < heads:
        goal = queries + (row * heads + head) * size + inside
    elif head < heads + kv_heads:
        goal = keys + length * size + inside
    else:
        goal = values + length * size + inside
    tl.store(goal, first, mask=there)
    tl.store(goal + half, second, mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    queries, places, outputs, highest, sums, rows, layer, scale,
    heads: tl.constexpr, group: tl.constexpr, size: tl.constexpr, splits: tl.constexpr, least_group: tl.constexpr,
    width: tl.constexpr, block: tl.constexpr, element: tl.constexpr,
):  # fmt: skip
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length, keys, values = _row(places, row, rows, layer, head, element)
    total = length + 1
    share = tl.cdiv(tl.cdiv(total, splits), block) * block
    begin = split * share
    end = tl.minimum(begin + share, total)
    member, inside, step = tl.arange(0, least_group), tl.arange(0, width), tl.arange(0, block)
    query_place = (row * heads + head * group + member)[:, None] * size + inside[None, :]
    query_there = (member < group)[:, None] & (inside < size)[None, :]
    query = tl.load(queries + query_place, mask=query_there, other=0.0)
    best = tl.full([least_group], float("-inf"), tl.float32)
    weight = tl.zeros([least_group], tl.float32)
    mixed = tl.zeros([least_group, width], tl.float32)
    for first in range(begin, end, block):
        at = first + step
        seen = at < end
        place = at[:, None] * size + inside[None, :]
        there = seen[:, None] & (inside < size)[None, :]
        key = tl.load(keys + place, mask=there, other=0.0)
        value = tl.load(values + place, mask=there, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, axis=1))
        shrunk = tl.exp(best - higher)
        shares = tl.exp(scores - higher[:, None])
        weight = weight * shrunk + tl.sum(shares, axis=1)
        mixed = mixed * shrunk[:, None] + tl.dot(shares.to(element), value, input_precision="ieee")
        best = higher
    # A part without tokens counts nothing, and must not divide by it.
    mixed = mixed / tl.maximum(weight, 1e-30)[:, None]
    part = (split * rows + row) * heads + head * group + member
    tl.store(outputs + part[:, None] * size + inside[None, :], mixed, mask=query_there)
    if splits > 1:
        tl.store(highest + part, best, mask=member < group)
        tl.store(sums + part, weight, mask=member < group)


@triton.jit  # type: ignore[untyped-decorator]
def _join(  # type: ignore[no-untyped-def]
    parts, highest, sums, outputs, places_of_rows, size: tl.constexpr, splits: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    split, inside = tl.arange(0, splits), tl.arange(0, width)
    each = split * places_of_rows + place
    best = tl.load(highest + each)
    share = tl.exp(best - tl.max(best, axis=0)) * tl.load(sums + each)
    share = share / tl.sum(share, axis=0)
    part = tl.load(parts + each[:, None] * size + inside[None, :], mask=(inside < size)[None, :], other=0.0)
    tl.store(outputs + place * size + inside, tl.sum(part * share[:, None], axis=0), mask=inside < size)


def add_norm(
    hidden: torch.Tensor, change: torch.Tensor | None, weight: torch.Tensor, *, epsilon: float
) -> torch.Tensor:
    """Add the change to `hidden`, in place, and give that with its mean square made 1 and weighted."""
    normed = torch.empty_like(hidden)
    size = hidden.shape[-1]
    _add_norm[(len(hidden),)](
        hidden, hidden if change is None else change, weight, normed, epsilon, size=size,
        width=triton.next_power_of_2(size), adds=change is not None,
    )  # fmt: skip
    return normed


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up of a matrix that has both side by side."""
    rows, size = len(gate_up), gate_up.shape[-1] // 2
    product = gate_up.new_empty(rows, size)
    _gated[(rows, triton.cdiv(size, _WIDE))](gate_up, product, size, block=_WIDE)
    return product


def rotate_and_keep(
    projected: torch.Tensor, norms: tuple[torch.Tensor, torch.Tensor] | None, cosine: torch.Tensor, sine: torch.Tensor,
    places: torch.Tensor, *, layer: int, heads: int, kv_heads: int, epsilon: float,
) -> torch.Tensor:  # fmt: skip
    """The queries (rows, heads, head size) of what was projected, at their positions; keys and values go to their rows.

    `places` (4, rows) says how many tokens each row has, the address of its first key, and the strides of layers (keys,
    then as many values) and of heads, in elements.
    """
    rows, half = len(projected), cosine.shape[-1]
    queries = projected.new_empty(rows, heads, 2 * half)
    query_norm, key_norm = norms or (projected, projected)
    _rotate_and_keep[(rows, heads + 2 * kv_heads)](
        projected, query_norm, key_norm, cosine, sine, places, queries, rows, layer, epsilon, heads=heads,
        kv_heads=kv_heads, half=half, width=triton.next_power_of_2(half), norms=norms is not None,
        element=_ELEMENTS[projected.dtype],
    )  # fmt: skip
    return queries


def attend(queries: torch.Tensor, places: torch.Tensor, *, layer: int, kv_heads: int) -> torch.Tensor:
    """The heads' outputs side by side; each row's new token sees what its row has, and itself."""
    rows, heads, size = queries.shape
    splits = _splits(rows, kv_heads=kv_heads)
    width = max(16, triton.next_power_of_2(size))
    parts = queries.new_empty(splits, rows, heads, size, dtype=queries.dtype if splits == 1 else torch.float32)
    highest, sums = queries.new_empty(2, splits, rows, heads, dtype=torch.float32)
    group = heads // kv_heads
    _attend[(rows, kv_heads, splits)](
        queries, places, parts, highest, sums, rows, layer, size**-0.5, heads=heads, group=group, size=size,
        splits=splits, least_group=max(_LEAST_GROUP, triton.next_power_of_2(group)), width=width, block=_BLOCK,
        element=_ELEMENTS[queries.dtype], num_warps=4,
    )  # fmt: skip
    if splits == 1:
        return parts.view(rows, -1)
    outputs = torch.empty_like(queries)
    _join[(rows * heads,)](parts, highest, sums, outputs, rows * heads, size=size, splits=splits, width=width)
    return outputs.view(rows, -1)


def _splits(rows: int, *, kv_heads: int) -> int:
    """Into how many parts each row is cut, so that the GPU has work for all of it: a power of two."""
    wanted = max(1, min(_MOST_SPLITS, _PROGRAMS // (rows * kv_heads)))
    return 1 << (wanted.bit_length() - 1)
