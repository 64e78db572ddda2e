"""Encodes the blocks of a version on several threads and hands them on in order, a few at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from trimtab.weights.baseline import Baseline
from trimtab.weights.codec.blocks import Codec, Encoded, encode_change, encode_whole
from trimtab.weights.codec.change import Change
from trimtab.weights.layout import Block


@dataclass(frozen=True)
class EncodedBlock:
    """A block ready for the store, with the digests of its content before and after; no `base` for a whole one."""

    block: int
    encoded: Encoded
    base: bytes | None
    digest: bytes


def encoded_change(baseline: Baseline, block: Block, change: Change, codec: Codec) -> EncodedBlock:
    return EncodedBlock(
        block.index,
        encode_change(baseline.block(block), change, block.element, codec=codec),
        baseline.digests[block.index],
        baseline.digest_after(block, change),
    )


def encoded_whole(baseline: Baseline, block: Block) -> EncodedBlock:
    whole = encode_whole(baseline.block(block), block.element)
    return EncodedBlock(block.index, whole, None, baseline.digests[block.index])


async def in_order(
    jobs: Iterable[Callable[[], EncodedBlock]], executor: Executor, *, ahead: int
) -> AsyncIterator[EncodedBlock]:
    """Runs `ahead` jobs at once and yields their results in the order of the jobs."""
    loop = asyncio.get_running_loop()
    under_way: deque[asyncio.Future[EncodedBlock]] = deque()
    try:
        for job in jobs:
            under_way.append(loop.run_in_executor(executor, job))
            if len(under_way) >= ahead:
                yield await under_way.popleft()
        while under_way:
            yield await under_way.popleft()
    finally:
        # Threads cannot be stopped; whoever touches the baseline next must not find one of them reading it.
        if under_way:
            await asyncio.gather(*under_way, return_exceptions=True)
