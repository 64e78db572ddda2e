"""Rows of a step as tensors: padded micro-batches within a token budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from trimtab.fabric.wire.lease import StepTotals


@dataclass(frozen=True, kw_only=True)
class Row:
    """One sample as the loss needs it; logprobs and mask are aligned with token_ids."""

    token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    mask: npt.NDArray[np.bool_]
    advantage: float


@dataclass(frozen=True, kw_only=True)
class StepPortion:
    """Rows of this rank in one step, as far as they exist."""

    step: int
    lease_id: str
    rows: tuple[Row, ...]
    totals: StepTotals | None
    """Over all ranks and portions, with the last one."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Rows of similar length, padded on the right."""

    token_ids: torch.Tensor
    attention_mask: torch.Tensor
    logprobs: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor


def micro_batches(rows: Sequence[Row], *, max_tokens: int) -> Iterator[MicroBatch]:
    """All rows, longest first, in padded blocks of at most `max_tokens`; a row that is longer is a block of its own."""
    ordered = sorted(rows, key=lambda row: len(row.token_ids), reverse=True)
    while ordered:
        width = len(ordered[0].token_ids)
        count = max(1, max_tokens // max(1, width))
        yield _padded(ordered[:count], width=width)
        ordered = ordered[count:]


def _padded(rows: Sequence[Row], *, width: int) -> MicroBatch:
    token_ids = np.zeros((len(rows), width), dtype=np.int64)
    attention_mask = np.zeros((len(rows), width), dtype=np.int64)
    logprobs = np.zeros((len(rows), width), dtype=np.float32)
    mask = np.zeros((len(rows), width), dtype=np.bool_)
    for number, row in enumerate(rows):
        length = len(row.token_ids)
        token_ids[number, :length] = row.token_ids
        attention_mask[number, :length] = 1
        logprobs[number, :length] = row.logprobs
        mask[number, :length] = row.mask
    return MicroBatch(
        token_ids=torch.from_numpy(token_ids),
        attention_mask=torch.from_numpy(attention_mask),
        logprobs=torch.from_numpy(logprobs),
        mask=torch.from_numpy(mask),
        advantages=torch.tensor([row.advantage for row in rows], dtype=torch.float32),
    )
