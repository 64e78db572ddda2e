"""Brings a rank to the newest checkpoint, the same on all ranks."""

from __future__ import annotations

import structlog
import torch
import torch.distributed as dist

from trimtab.trainer.background import Background
from trimtab.trainer.checkpoint import CheckpointStore, restore
from trimtab.trainer.learner import Learner

_log = structlog.get_logger(__name__)
_DIGEST_HEX = 12


class RanksDisagree(RuntimeError):
    """Ranks resumed from different checkpoints: a trainer that should be dead wrote one in between. Start again."""


def resume(learner: Learner, checkpoints: CheckpointStore, background: Background) -> None:
    """All ranks call it together, rank 0 after it has claimed the checkpoints: from then on nobody else moves them."""
    if dist.is_initialized():
        dist.barrier()
    newest = background.run(checkpoints.newest())
    mark = (-1, 0)
    if newest is not None:
        pointer, body = newest
        restore(learner, body, step=pointer.step)
        mark = (pointer.step, int(pointer.sha256[:_DIGEST_HEX], 16))
        _log.info("resumed", step=pointer.step)
    if dist.is_initialized():
        _check_same(mark)


def _check_same(mark: tuple[int, int]) -> None:
    lowest, highest = torch.tensor(mark), torch.tensor(mark)
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    if not torch.equal(lowest, highest):
        raise RanksDisagree(f"one rank resumed from step {lowest[0]}, another from {highest[0]}, or from other weights")
