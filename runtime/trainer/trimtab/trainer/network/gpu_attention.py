"""Causal attention over a pack on a GPU in half precision: cuDNN for each long sequence, one flash kernel for the rest.

On Hopper cuDNN is about twice as fast, but it plans each shape anew, which takes a while. So the lengths it sees are
rounded up, and what follows in the pack takes the place of padding: a causal query never sees it, and queries that are
too many get no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.nn.functional import pad

_LONG = 2048
_STEPS_PER_OCTAVE = 16
_LANES = 2
_aten = torch.ops.aten


def rounded_up(length: int) -> int:
    """By at most a sixteenth, to one of sixteen lengths between a power of two and the next."""
    step = max(1, (1 << (length - 1).bit_length()) // (2 * _STEPS_PER_OCTAVE))
    return -(-length // step) * step


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor, *, scale: float
) -> torch.Tensor:
    """(tokens, heads, width) each, and out. `lengths` lie in main memory, the longest first; a compiled layer does not
    look into them, so it is compiled once for all.
    """
    out: torch.Tensor = _attend(query, key, value, lengths, scale)[0]
    return out


@torch.library.custom_op("trimtab::packed_attention", mutates_args=())
def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    sequences = lengths.tolist()
    outs, normalizers = [], []
    with _side_by_side(query.device) as lanes:
        for number, span in enumerate(_long_ones(sequences, heads=query.shape[1])):
            with torch.cuda.stream(lanes[number % _LANES]):
                seen = _aten._scaled_dot_product_cudnn_attention(
                    *(span.window(states) for states in (query, key, value)), None, True, 0.0, True, False, scale=scale
                )
                outs.append(span.inside(seen[0]))
                normalizers.append(seen[1].reshape(-1))
        start, short = _short_ones(sequences)
        if short:
            offsets = _offsets(short, device=query.device)
            seen = _aten._flash_attention_forward(
                query[start:], key[start:], value[start:], offsets, offsets, short[0], short[0], 0.0, True, False,
                scale=scale,
            )  # fmt: skip
            outs.append(seen[0])
            normalizers.append(seen[1].reshape(-1))
    used = sum(part.numel() for part in normalizers)
    unused = _room_for_normalizers(query) - used
    return torch.cat(outs), torch.cat([*normalizers, normalizers[0].new_empty(unused)])


@_attend.register_fake
def _(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(query), query.new_empty(_room_for_normalizers(query), dtype=torch.float32)


@torch.library.custom_op("trimtab::packed_attention_backward", mutates_args=())
def _attend_backward(
    by_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    normalizers: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    sequences = lengths.tolist()
    heads = query.shape[1]
    no_seed = torch.zeros((), dtype=torch.int64, device=query.device)
    found = []
    used = 0
    with _side_by_side(query.device) as lanes:
        for number, span in enumerate(_long_ones(sequences, heads=heads)):
            with torch.cuda.stream(lanes[number % _LANES]):
                slopes = _aten._scaled_dot_product_cudnn_attention_backward(
                    span.window(by_out[: span.end]),
                    *(span.window(states) for states in (query, key, value, out)),
                    normalizers[span.first_normalizer : span.last_normalizer].view(1, heads, span.rounded, 1),
                    no_seed, no_seed, None, None, None, span.rounded, span.rounded, 0.0, True, scale=scale,
                )  # fmt: skip
                found.append([span.inside(slope) for slope in slopes])
                used = span.last_normalizer
        start, short = _short_ones(sequences)
        if short:
            offsets = _offsets(short, device=query.device)
            slopes = _aten._flash_attention_backward(
                by_out[start:].contiguous(), query[start:], key[start:], value[start:], out[start:],
                normalizers[used : used + heads * sum(short)].view(heads, -1),
                offsets, offsets, short[0], short[0], 0.0, True, no_seed, no_seed, scale=scale,
            )  # fmt: skip
            found.append(slopes)
    by_query, by_key, by_value = (torch.cat(parts) for parts in zip(*found, strict=True))
    return by_query, by_key, by_value


@_attend_backward.register_fake
def _(
    by_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    normalizers: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    query, key, value, lengths, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, *output, lengths)


def _slopes(ctx: Any, by_out: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    query, key, value, out, normalizers, lengths = ctx.saved_tensors
    return (*_attend_backward(by_out, query, key, value, out, normalizers, lengths, ctx.scale), None, None)


_attend.register_autograd(_slopes, setup_context=_remember)


@contextmanager
def _side_by_side(device: torch.device) -> Iterator[Sequence[torch.cuda.Stream]]:
    """Streams beside the current one, because a sequence alone does not fill the GPU. Both wait for one another, so
    memory that one has let go is not taken while the other still uses it.
    """
    current = torch.cuda.current_stream(device)
    lanes = _lanes(device)
    for lane in lanes:
        lane.wait_stream(current)
    yield lanes
    for lane in lanes:
        current.wait_stream(lane)


@cache
def _lanes(device: torch.device) -> Sequence[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(_LANES)]  # type: ignore[no-untyped-call]


class _Span:
    """A long sequence in the pack, and its place among the normalizers, which cuDNN wants at the rounded length."""

    def __init__(self, start: int, length: int, *, first_normalizer: int, heads: int) -> None:
        self.start = start
        self.length = length
        self.end = start + length
        self.rounded = rounded_up(length)
        self.first_normalizer = first_normalizer
        self.last_normalizer = first_normalizer + heads * self.rounded

    def window(self, states: torch.Tensor) -> torch.Tensor:
        """(1, heads, rounded length, width). Past the end of the states there are zeros."""
        part = states[self.start : self.start + self.rounded]
        if len(part) < self.rounded:
            part = pad(part, (0, 0, 0, 0, 0, self.rounded - len(part)))
        return part.transpose(0, 1)[None]

    def inside(self, window: torch.Tensor) -> torch.Tensor:
        """Back to (length, heads, width)."""
        return window[0, :, : self.length].transpose(0, 1)


def _long_ones(sequences: Sequence[int], *, heads: int) -> Iterator[_Span]:
    start = normalizer = 0
    for length in sequences:
        if length < _LONG:
            return
        span = _Span(start, length, first_normalizer=normalizer, heads=heads)
        yield span
        start, normalizer = span.end, span.last_normalizer


def _short_ones(sequences: Sequence[int]) -> tuple[int, Sequence[int]]:
    """Where they begin, and their lengths."""
    number = sum(length >= _LONG for length in sequences)
    return sum(sequences[:number]), sequences[number:]


def _room_for_normalizers(query: torch.Tensor) -> int:
    """For those of all sequences, rounded up or not: a sixteenth more than there are tokens is the most."""
    tokens, heads = query.shape[:2]
    return heads * (tokens + tokens // _STEPS_PER_OCTAVE + 1)


def _offsets(lengths: Sequence[int], *, device: torch.device) -> torch.Tensor:
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    offsets[1:] = torch.tensor(lengths, dtype=torch.int32).cumsum(0)
    return offsets.to(device, non_blocking=True)
