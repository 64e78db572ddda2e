"""Copying a checkpoint of a job that may replace it meanwhile, checked against what its trainer has signed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from trimtab.fabric.backoff import FullJitter
from trimtab.trainer.checkpoints.index import CheckpointDamaged, CheckpointPointer, IndexReference
from trimtab.trainer.checkpoints.reader import CheckpointReader
from trimtab.trainer.checkpoints.seal import SealReader
from trimtab.trainer.checkpoints.storage import CheckpointStorage

_ATTEMPTS = 5
_BACKOFF = FullJitter(base_s=0.5, cap_s=5.0)


class ReplacedTooFast(Exception):
    """Checkpoints are replaced faster than they can be copied."""


async def copy_checkpoint(
    storage: CheckpointStorage,
    seal: SealReader,
    place: Callable[[str], Path],
    *,
    choose: Callable[[tuple[IndexReference, ...]], IndexReference],
) -> tuple[int, bytes] | None:
    """Into files, each where `place` says by its name. The step, and the pointer that leads to it as it was signed;
    None where there is no checkpoint. Raises ReplacedTooFast, CheckpointDamaged, and what `choose` raises."""
    seen: bytes | None = None
    for attempt in range(_ATTEMPTS):
        reader = CheckpointReader(storage, seal)
        body = await reader.proof()
        if body is None:
            return None
        try:
            reference = choose(seal.opened(body, CheckpointPointer, where=storage.pointer).checkpoints)
            sealed = await reader.sealed(reference)
            index = reader.opened(sealed)
            for file in index.files:
                await reader.fetch(file, place(file.name))
        except CheckpointDamaged:
            if body == seen:
                raise
            seen = body
            await asyncio.sleep(_BACKOFF.delay_s(attempt))
            continue
        place(reference.name).write_bytes(sealed)
        return index.step, body
    raise ReplacedTooFast(f"checkpoints of {seal.policy} are replaced faster than they can be copied; suspend the job")
