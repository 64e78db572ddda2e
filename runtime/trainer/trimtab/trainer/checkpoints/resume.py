"""Brings a rank to a checkpoint, the same on all ranks, whatever number of ranks wrote it: to the newest of its own, or
to one of another job where a new one begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog
import torch
import torch.distributed as dist

from trimtab.fabric.backoff import FullJitter
from trimtab.trainer import ranks
from trimtab.trainer.background import Background
from trimtab.trainer.batch_stream import BatchStream
from trimtab.trainer.checkpoints.index import HOW_TO_GO_ON, CheckpointDamaged, CheckpointIndex
from trimtab.trainer.checkpoints.layout import FileLayout
from trimtab.trainer.checkpoints.origin import Origin, misfit
from trimtab.trainer.checkpoints.reader import CheckpointReader
from trimtab.trainer.checkpoints.seal import CheckpointRefused
from trimtab.trainer.checkpoints.shards import plan_reads
from trimtab.trainer.checkpoints.state import random_tensors_for, restore_random, tensors_for
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.learner import Learner

_log = structlog.get_logger(__name__)
_PROOF_S = 10.0
_PROOF_BACKOFF = FullJitter(base_s=0.2, cap_s=2.0)


def resume(learner: Learner, checkpoints: CheckpointStore, background: Background, *, rank: int) -> bool:
    """All ranks call it together, rank 0 after it has claimed the checkpoints: from then on no other trainer moves
    them. Whether there was one.
    """
    sealed = background.run(checkpoints.newest_sealed()) if rank == 0 else None
    sealed = _agreed(sealed, rank=rank)
    if sealed is None:
        return False
    index = checkpoints.opened(sealed)
    # With another number of ranks there are no random numbers that this rank could go on with.
    same_ranks = index.world_size == ranks.world_size()
    randoms = random_tensors_for(rank=rank) if same_ranks else {}
    _read(index, index.optimizer_steps, randoms, learner, checkpoints, background, rank=rank)
    learner.step = index.step
    _log.info("resumed", step=index.step, saved_by_ranks=index.world_size)
    return True


def begin_at(learner: Learner, origin: Origin, background: Background, *, rank: int) -> None:
    """All ranks call it together. Steps and random numbers are those of a new job. Raises JobMisconfigured."""
    sealed = _agreed(background.run(origin.sealed()) if rank == 0 else None, rank=rank)
    assert sealed is not None, "an origin without a checkpoint was refused"
    try:
        index = origin.reader.opened(sealed)
        steps = index.optimizer_steps if origin.optimizer else {}
        _read(index, steps, {}, learner, origin.reader, background, rank=rank)
    except CheckpointDamaged as error:
        raise misfit(error, policy=origin.policy) from None
    _log.info("begun_elsewhere", where=origin.where, step=index.step, saved_by_ranks=index.world_size)


async def meet_ledger(
    stream: BatchStream,
    *,
    step: int,
    proof: Callable[[], Awaitable[bytes | None]],
    where: str,
    stopping: Callable[[], bool],
) -> None:
    """Before anything is published: the dataflow knows other steps as durable where a power loss took the end of its
    ledger, or of these checkpoints. Shown what this policy's trainers have signed, it goes on with this step and gives
    up what may have been trained.

    A trainer without a checkpoint has nothing to show. All ranks ask; the first has it written down.
    """
    clock = asyncio.get_running_loop().time
    end, attempt = clock() + _PROOF_S, 0
    while not stopping():
        objection = await stream.objection(step, stopping=stopping)
        if objection is None:
            return
        sealed = await proof()
        if sealed is None:
            raise CheckpointRefused(f"{where} leads to no checkpoint, but {objection.message}; {HOW_TO_GO_ON}")
        refused = await stream.prove(step, sealed, stopping=stopping)
        if refused is not None and clock() >= end:
            raise CheckpointRefused(
                f"{where} leads to step {step}, but {objection.message}, and the dataflow does not believe the"
                f" checkpoint: {refused.message}; {HOW_TO_GO_ON}"
            )
        if refused is not None:
            # A shared volume may show this rank what was there before.
            await asyncio.sleep(_PROOF_BACKOFF.delay_s(attempt))
            attempt += 1


def _agreed(sealed: bytes | None, *, rank: int) -> bytes | None:
    """What rank 0 sees, as it was signed. On a shared volume others may still see what was there before."""
    if ranks.world_size() > 1:
        body = torch.frombuffer(bytearray(sealed or b"\0"), dtype=torch.uint8)
        size = torch.tensor([0 if sealed is None else len(body)])
        dist.broadcast(size, src=0)
        if rank != 0:
            body = torch.empty(max(1, int(size)), dtype=torch.uint8)
        dist.broadcast(body, src=0)
        sealed = body.numpy().tobytes() if int(size) else None
    return sealed


def _read(
    index: CheckpointIndex,
    optimizer_steps: Mapping[str, int],
    randoms: Mapping[str, torch.Tensor],
    learner: Learner,
    checkpoints: CheckpointReader,
    background: Background,
    *,
    rank: int,
) -> None:
    """The headers of all files tell which parts of them hold something for this rank; only those are read."""
    headers = background.run(checkpoints.headers(index.files))
    files = {
        file.rank: (file, FileLayout.read(header, where=file.name))
        for file, header in zip(index.files, headers, strict=True)
    }
    plan = plan_reads(tensors_for(learner, optimizer_steps=optimizer_steps), randoms, files)
    background.run(
        checkpoints.read(
            [(index.files[writer], part) for writer, part in plan.parts],
            lambda file, part, body: plan.take(file.rank, part, body),
        )
    )
    plan.finish()
    restore_random(
        {name: tensor for name, tensor in randoms.items() if name in plan.names},
        rank=rank,
        material=f"{index.files[0].digests[0]} {index.step} {rank} of {ranks.world_size()}",
    )
