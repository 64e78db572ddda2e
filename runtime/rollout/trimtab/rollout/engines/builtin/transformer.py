"""The forward passes of a Llama or Qwen decoder: many sequences at once, without padding them to one length.

Projections run over the tokens of all sequences in one matrix. Attention runs per arena of rows, or per piece of
sequences that have the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from trimtab.rollout.engines.builtin.architecture import Architecture
from trimtab.rollout.engines.builtin.kv_rows import Arena
from trimtab.rollout.engines.builtin.weights import ServedWeights

_LOGIT_ROWS = 128
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Layer, queries, keys and values of this pass (tokens, heads, head size), to the heads' outputs side by side."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The next tokens of sequences that have come equally far."""

    tokens: torch.Tensor
    """(sequences, tokens)"""
    cache: torch.Tensor
    """(layers, keys and values, sequences, heads, length, head size): where theirs are and go"""
    start: int
    """How many tokens are in the cache already."""


class Transformer:
    """Computes with weights that it is given for each pass."""

    def __init__(self, architecture: Architecture, *, device: torch.device, dtype: torch.dtype) -> None:
        self._shape = architecture
        self._device = device
        self._dtype = dtype
        self._frequencies = torch.tensor(architecture.rotary_frequencies, device=device)

    def extend(self, weights: ServedWeights, pieces: Sequence[Piece]) -> torch.Tensor:
        """Logits after the last token of every sequence, piece by piece; their keys and values go into the caches."""
        ends: list[int] = []
        total = 0
        for piece in pieces:
            count, length = piece.tokens.shape
            ends.extend(range(total + length - 1, total + count * length, length))
            total += count * length
        hidden = self._extended(weights, pieces)
        return self._logits(weights, hidden[torch.tensor(ends, device=self._device)])

    def logprobs(
        self,
        weights: ServedWeights,
        pieces: Sequence[Piece],
        targets: Sequence[torch.Tensor],
        temperatures: Sequence[float],
    ) -> list[list[float]]:
        """Of the tokens that follow those of each piece, of one sequence each; the last of a sequence has none after
        it. `targets` are those that follow the first of the piece, and all behind them.
        """
        hidden = self._norm(self._extended(weights, pieces), weights.norm)
        told: list[list[float]] = []
        first = 0
        for piece, following, temperature in zip(pieces, targets, temperatures, strict=True):
            rows = hidden[first : first + min(piece.tokens.numel(), len(following))]
            first += piece.tokens.numel()
            chosen = following[: len(rows)].to(self._device)
            # In slices: the logits of many tokens over a whole vocabulary are larger than the model.
            told.append(
                [
                    number
                    for start in range(0, len(rows), _LOGIT_ROWS)
                    for number in self._chosen(
                        weights, rows[start : start + _LOGIT_ROWS], chosen[start : start + _LOGIT_ROWS], temperature
                    )
                ]
            )
        return told

    def _chosen(
        self, weights: ServedWeights, rows: torch.Tensor, chosen: torch.Tensor, temperature: float
    ) -> list[float]:
        scores = functional.linear(rows, weights.head).float() / temperature
        picked = scores.gather(-1, chosen[:, None])[:, 0] - scores.logsumexp(dim=-1)
        logprobs: list[float] = picked.tolist()
        return logprobs

    def values(self, weights: ServedWeights, pieces: Sequence[Piece]) -> list[list[float]]:
        """What the value head says at each token of each piece."""
        hidden = self._norm(self._extended(weights, pieces), weights.norm)
        said = functional.linear(hidden.float(), weights.head.float())[:, 0]
        return [part.tolist() for part in torch.split(said, [piece.tokens.numel() for piece in pieces])]

    def _extended(self, weights: ServedWeights, pieces: Sequence[Piece]) -> torch.Tensor:
        positions = [
            torch.arange(piece.start, piece.start + piece.tokens.shape[1]).repeat(len(piece.tokens)) for piece in pieces
        ]
        tokens = torch.cat([piece.tokens.flatten() for piece in pieces]).to(self._device)

        def attend(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            outputs, first = [], 0
            for piece in pieces:
                part = slice(first, first := first + piece.tokens.numel())
                outputs.append(_attend_piece(piece, piece.cache[layer], queries[part], keys[part], values[part]))
            return torch.cat(outputs)

        return self._layers(weights, tokens, torch.cat(positions).to(self._device), attend)

    def decode(self, weights: ServedWeights, arenas: Sequence[Arena[Any]], tokens: Sequence[int]) -> torch.Tensor:
        """Logits after one more token on every row, whose keys and values go behind those the row has."""
        lengths = torch.tensor([row.length for arena in arenas for row in arena.rows], device=self._device)
        views: list[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]] = []
        first = 0
        for arena in arenas:
            part = slice(first, first := first + len(arena.rows))
            longest = max(row.length for row in arena.rows) + 1
            hidden_from_row = torch.arange(longest, device=self._device) > lengths[part, None]
            mask = torch.zeros(len(arena.rows), 1, 1, longest, device=self._device, dtype=self._dtype)
            mask.masked_fill_(hidden_from_row[:, None, None], -torch.inf)
            rows = torch.arange(len(arena.rows), device=self._device)
            views.append((part, arena.storage[:, :, : len(arena.rows)], mask, rows))

        def attend(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            outputs = []
            for part, storage, mask, rows in views:
                kept_keys, kept_values = storage[layer]
                kept_keys[rows, :, lengths[part]] = keys[part]
                kept_values[rows, :, lengths[part]] = values[part]
                outputs.append(_attend_one(queries[part], kept_keys, kept_values, mask))
            return torch.cat(outputs)

        ids = torch.tensor(tokens, device=self._device)
        return self._logits(weights, self._layers(weights, ids, lengths, attend))

    def decode_in_place(self, weights: ServedWeights, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """The same for rows that lie at the addresses in `places` (see decode_kernels), in few kernels that wait for no
        number on the host.
        """
        from trimtab.rollout.engines.builtin import decode_kernels  # it brings Triton, which only a GPU has a use for

        shape = self._shape
        cosine, sine = self._angles(places[0])
        add_norm = partial(decode_kernels.add_norm, epsilon=shape.norm_epsilon)
        hidden = functional.embedding(tokens, weights.embedding)
        change = None
        for number, layer in enumerate(weights.layers):
            queries = decode_kernels.rotate_and_keep(
                layer.qkv(add_norm(hidden, change, layer.input_norm)), layer.qk_norms, cosine, sine, places,
                layer=number, heads=shape.heads, kv_heads=shape.kv_heads, epsilon=shape.norm_epsilon,
            )  # fmt: skip
            change = layer.output(decode_kernels.attend(queries, places, layer=number, kv_heads=shape.kv_heads))
            gate_up = layer.gate_up(add_norm(hidden, change, layer.mlp_norm))
            change = layer.down(decode_kernels.gated(gate_up))
        return functional.linear(add_norm(hidden, change, weights.norm), weights.head)

    def _layers(
        self, weights: ServedWeights, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        shape = self._shape
        cosine, sine = self._angles(positions)
        hidden = functional.embedding(tokens, weights.embedding)
        for number, layer in enumerate(weights.layers):
            heads = layer.qkv(self._norm(hidden, layer.input_norm)).view(len(hidden), -1, shape.head_size)
            queries, keys, values = heads.tensor_split((shape.heads, shape.heads + shape.kv_heads), dim=1)
            if layer.qk_norms is not None:
                queries, keys = self._norm(queries, layer.qk_norms[0]), self._norm(keys, layer.qk_norms[1])
            queries, keys = _rotated(queries, cosine, sine), _rotated(keys, cosine, sine)
            hidden = hidden + layer.output(attend(number, queries, keys, values))
            gate, up = layer.gate_up(self._norm(hidden, layer.mlp_norm)).chunk(2, dim=-1)
            hidden = hidden + layer.down(functional.silu(gate) * up)
        return hidden

    def _angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine (tokens, 1, half of a head)."""
        angles = positions[:, None, None].float() * self._frequencies
        scale = self._shape.rotary_scale
        return (angles.cos() * scale).to(self._dtype), (angles.sin() * scale).to(self._dtype)

    def _logits(self, weights: ServedWeights, hidden: torch.Tensor) -> torch.Tensor:
        return functional.linear(self._norm(hidden, weights.norm), weights.head)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self._shape.norm_epsilon)


def _rotated(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Each pair of elements half a head apart, turned by the angle of its position."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def _attend_one(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """One query token per row. The query heads of a key head are taken as tokens, so that nothing is repeated."""
    rows, kv_heads, _, size = keys.shape
    length = mask.shape[-1]
    grouped = queries.reshape(rows, kv_heads, -1, size)
    output = functional.scaled_dot_product_attention(
        grouped, keys[:, :, :length], values[:, :, :length], attn_mask=mask
    )
    return output.reshape(rows, -1)


def _attend_piece(
    piece: Piece, cache: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    count, length = piece.tokens.shape
    end = piece.start + length
    kept_keys, kept_values = cache[..., :end, :]
    kept_keys[:, :, piece.start :] = _by_sequence(keys, count)
    kept_values[:, :, piece.start :] = _by_sequence(values, count)
    mask = None
    if piece.start and length > 1:
        mask = torch.ones(length, end, device=keys.device, dtype=torch.bool).tril_(piece.start)
    output = functional.scaled_dot_product_attention(
        _by_sequence(queries, count),
        kept_keys,
        kept_values,
        attn_mask=mask,
        is_causal=piece.start == 0 and length > 1,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return output.transpose(1, 2).reshape(count * length, -1)


def _by_sequence(heads: torch.Tensor, count: int) -> torch.Tensor:
    """(tokens, heads, head size) of so many sequences as (sequences, heads, tokens of each, head size)."""
    return heads.reshape(count, -1, *heads.shape[1:]).transpose(1, 2)
