"""What is decided over a whole step, by all ranks together. Episodes count, not rows: one that is cut into rows, which
may lie in different packs and on different ranks, decides no more and no less than a whole one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from trimtab.trainer import ranks
from trimtab.trainer.batch import PackedBatch, Row
from trimtab.trainer.losses.m2po import furthest_kept, harmful_squares

_TINY = 1e-6


@dataclass(frozen=True, kw_only=True)
class Share:
    """This rank's packs of an update, or of a portion of it; every rank has as many."""

    packs: tuple[PackedBatch, ...]
    episodes: float
    """A row counts for its part of an episode, so that ranks add up to whole ones."""
    cut: bool
    """Some episode has more than one row, on whatever rank."""
    begun: tuple[torch.Tensor, ...] | None = None
    """What the policy said to each pack when it was looked at, None where it was not."""
    versions_behind: float = 0.0
    """Over its trained tokens, how much older than the policy the values are that a critic learns with."""


def dealt(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """This rank's rows of each of `count` equal parts of the step's episodes. Keys decide, wherever a row was dealt
    to."""
    keys = ranks.gathered(torch.tensor([row.episode.key for row in rows], dtype=torch.int64))
    position = {key: number for number, key in enumerate(sorted(set(keys.tolist())))}
    parts: list[list[Row]] = [[] for _ in range(count)]
    for row in rows:
        parts[position[row.episode.key] * count // len(position)].append(row)
    return parts


def normalized_advantages(updates: Sequence[Sequence[Share]]) -> list[list[Share]]:
    """With mean 0 and deviation 1 over the episodes of the step, of which a token has its part. Equal ones become
    zeros."""
    count, total = ranks.sums(
        math.fsum(weights.sum().item() for weights, _ in _weighted(updates)),
        math.fsum((weights * values).sum().item() for weights, values in _weighted(updates)),
    )
    mean = total / max(1.0, count)
    (squares,) = ranks.sums(
        math.fsum((weights * (values - mean).square()).sum().item() for weights, values in _weighted(updates))
    )
    deviation = math.sqrt(squares / max(1.0, count - 1)) + _TINY

    def normalized(share: Share) -> Share:
        return replace(
            share,
            packs=tuple(replace(batch, advantages=(batch.advantages - mean) / deviation) for batch in share.packs),
        )

    return [[normalized(share) for share in shares] for shares in updates]


def _weighted(updates: Sequence[Sequence[Share]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Of each pack, weights and advantages of its tokens, in float64: the tokens of an episode weigh one together."""
    for shares in updates:
        for share in shares:
            for batch in share.packs:
                lengths = batch.answer_lengths.clamp(min=1)[batch.sequences]
                yield lengths.double().reciprocal(), batch.advantages.double()


def answer_log_ratios(packs: Sequence[PackedBatch], log_ratios: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """For each pack, of each of its sequences, the mean log ratio of the whole answer: over all sequences of the
    episode, on whatever rank. `log_ratios` are those of the packs' tokens.
    """
    sums = [
        torch.zeros(len(batch.lengths), dtype=torch.float64, device=values.device)
        .index_add(0, batch.sequences, values.double())
        .cpu()
        for batch, values in zip(packs, log_ratios, strict=True)
    ]
    keys = torch.tensor([episode.key for batch in packs for episode in batch.episodes], dtype=torch.int64)
    parts = torch.cat([torch.zeros(0, dtype=torch.float64), *sums])
    totals: dict[int, float] = defaultdict(float)
    for key, part in zip(ranks.gathered(keys).tolist(), ranks.gathered(parts).tolist(), strict=True):
        totals[key] += part
    return [
        torch.tensor(
            [totals[episode.key] / max(1, episode.trained_tokens) for episode in batch.episodes],
            dtype=values.dtype,
            device=values.device,
        )
        for batch, values in zip(packs, log_ratios, strict=True)
    ]


def second_moment_limit(shares: Sequence[Share], *, bound: float) -> float:
    """The largest squared log ratio that M2PO keeps, given what the policy says to this rank's shares."""
    squares = [
        harmful_squares(now - batch.sampled_logprobs, batch.advantages)
        for share in shares
        for batch, now in zip(share.packs, share.begun or (), strict=True)
    ]
    # Ranks have as many packs, so all of them have some or none of them has.
    return furthest_kept(ranks.gathered(torch.cat(squares)), bound=bound) if squares else float("inf")
