"""The rows of a step, and how they are packed: side by side without padding, within a token budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch

from trimtab.fabric.wire.lease import StepTotals


class ColumnMissing(RuntimeError):
    """A row that is trained lacks what a stage has to say about it."""


@dataclass(frozen=True, kw_only=True)
class RowEpisode:
    """The episode that a row is of. Losses are normalised by it, so that cutting it into rows changes nothing."""

    group: str
    index: int
    """Tells it apart from others of the group."""
    rows: int
    trained_tokens: int
    """Of all its rows, on whatever rank."""

    @cached_property
    def key(self) -> int:
        """Tells the episode apart from all others of the step, the same on every rank and in every process."""
        name = f"{self.group}\0{self.index}".encode()
        return int.from_bytes(blake2b(name, digest_size=8).digest(), "little", signed=True)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row as the loss needs it; logprobs, mask, versions and advantages are aligned with token_ids."""

    key: int
    """Tells the row apart from all others of the step, on whatever rank."""
    episode: RowEpisode
    token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    mask: npt.NDArray[np.bool_]
    versions: npt.NDArray[np.int64]
    """Of the weights that sampled each token, where the mask is set."""
    advantages: npt.NDArray[np.float32]
    """Of each token, where the mask is set."""
    columns: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """By stage, what it computed of each token, where the mask is set."""
    column_versions: Mapping[str, int] = field(default_factory=dict)
    """By stage, of the weights that computed it, the oldest, where they are of a policy that learns."""

    @property
    def trained_tokens(self) -> int:
        """The first token of a sequence is predicted by nothing."""
        return int(self.mask[1:].sum())


@dataclass(frozen=True, kw_only=True)
class RowLimits:
    """What the model can read: token ids below `vocabulary`, and no more than `longest` of them."""

    vocabulary: int
    longest: int


def sole_row(index: int, mask: npt.NDArray[np.bool_], *, group: str = "") -> RowEpisode:
    """An episode that is one row."""
    return RowEpisode(group=group, index=index, rows=1, trained_tokens=int(mask.sum()))


def blank_row(key: int, episode: RowEpisode, *, stages: Iterable[str] = ()) -> Row:
    """One token that is read and not trained, with columns of these stages."""
    return Row(
        key=key,
        episode=episode,
        token_ids=np.zeros(1, dtype=np.int32),
        logprobs=np.zeros(1, dtype=np.float32),
        mask=np.zeros(1, dtype=np.bool_),
        versions=np.zeros(1, dtype=np.int64),
        advantages=np.zeros(1, dtype=np.float32),
        columns={stage: np.zeros(1, dtype=np.float32) for stage in stages},
    )


@dataclass(frozen=True, kw_only=True)
class StepPortion:
    """Rows of this rank in one step, as far as they exist."""

    step: int
    lease_id: str
    rows: tuple[Row, ...]
    totals: StepTotals | None
    """Over all ranks and portions, with the last one."""
    dealt: int = 0
    """The same for all ranks of the portion."""
    evaluated_s: float = 0.0
    """How long it was asked for while a round of evaluation came before it."""


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """Sequences one after the other, and which of their tokens are trained."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    lengths: tuple[int, ...]
    """Tokens of each sequence, the longest first."""
    predictors: torch.Tensor
    """Where the model predicts a trained token: the position before it."""
    chosen: torch.Tensor
    """The trained tokens."""
    sampled_logprobs: torch.Tensor
    versions: torch.Tensor
    """Of the weights that sampled them."""
    advantages: torch.Tensor
    sequences: torch.Tensor
    """Of each trained token, the number of its sequence."""
    answer_lengths: torch.Tensor
    """Of each sequence, the number of trained tokens of its whole episode."""
    episodes: tuple[RowEpisode, ...]
    """Of each sequence."""
    columns: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """By stage, what it computed of each trained token."""


def in_order(rows: Sequence[Row]) -> list[Row]:
    """As a pack has them."""
    return sorted(rows, key=lambda row: (-len(row.token_ids), row.key))


def micro_batches(rows: Sequence[Row], *, max_tokens: int) -> list[tuple[Row, ...]]:
    """As few packs as fit the budget, about equally full. A row that is longer is a pack of its own.

    Longest first into the emptiest pack: their sizes come out close to one another, and the same rows always give the
    same packs. Where one comes out too full, a pack more takes of all, because one with little in it costs the GPU
    almost as much as a full one.
    """
    ordered = in_order(rows)
    total = sum(len(row.token_ids) for row in ordered)
    for number in range(max(1, -(-total // max_tokens)), len(ordered)):
        packs: list[list[Row]] = [[] for _ in range(number)]
        sizes = [0] * number
        for row in ordered:
            emptiest = min(range(number), key=sizes.__getitem__)
            packs[emptiest].append(row)
            sizes[emptiest] += len(row.token_ids)
        if all(size <= max_tokens or len(pack) == 1 for pack, size in zip(packs, sizes, strict=True)):
            return [tuple(pack) for pack in packs]
    return [(row,) for row in ordered]


def pack(rows: Sequence[Row], *, device: torch.device, columns: Sequence[str] = ()) -> PackedBatch:
    """Longest first, so that sequences of similar length are neighbours in attention. Of the columns that rows have
    only those that are named come along.
    """
    ordered = in_order(rows)
    lengths = [len(row.token_ids) for row in ordered]
    starts = np.cumsum([0, *lengths[:-1]], dtype=np.int64)
    masks = [np.concatenate(([False], row.mask[1:])) for row in ordered]
    trained_at = [np.flatnonzero(mask) for mask in masks]
    counts = np.array([len(at) for at in trained_at], dtype=np.int64)
    sampled = np.concatenate([row.logprobs[at] for row, at in zip(ordered, trained_at, strict=True)])
    versions = np.concatenate([row.versions[at] for row, at in zip(ordered, trained_at, strict=True)])
    chosen = np.concatenate([row.token_ids[at] for row, at in zip(ordered, trained_at, strict=True)])
    predictors = np.concatenate([start + at - 1 for start, at in zip(starts, trained_at, strict=True)])
    advantages = np.concatenate([row.advantages[at] for row, at in zip(ordered, trained_at, strict=True)])
    answer_lengths = np.array([row.episode.trained_tokens for row in ordered], dtype=np.int64)

    def tensor(values: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values).to(device)

    return PackedBatch(
        token_ids=tensor(np.concatenate([row.token_ids for row in ordered]).astype(np.int64)),
        positions=tensor(np.concatenate([np.arange(length) for length in lengths])),
        lengths=tuple(lengths),
        predictors=tensor(predictors.astype(np.int64)),
        chosen=tensor(chosen.astype(np.int64)),
        sampled_logprobs=tensor(sampled.astype(np.float32)),
        versions=tensor(versions),
        advantages=tensor(advantages.astype(np.float32)),
        sequences=tensor(np.repeat(np.arange(len(ordered)), counts)),
        answer_lengths=tensor(answer_lengths),
        episodes=tuple(row.episode for row in ordered),
        columns={name: tensor(_column(name, ordered, trained_at)) for name in columns},
    )


def _column(name: str, rows: Sequence[Row], trained_at: Sequence[npt.NDArray[np.intp]]) -> npt.NDArray[np.float32]:
    """Of the trained tokens of all rows. A row without any need not have it."""
    parts = [np.zeros(0, dtype=np.float32)]
    for row, at in zip(rows, trained_at, strict=True):
        if len(at) and name not in row.columns:
            raise ColumnMissing(f"row {row.key} of group {row.episode.group} has no column of stage {name}")
        if len(at):
            parts.append(row.columns[name][at])
    return np.concatenate(parts).astype(np.float32)
