"""Encoded blocks on disk: anchors and folds are encoded at once, while the state is at hand, and uploaded when there is
time.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from trimtab.weights.codec.blocks import Encoded, Mode
from trimtab.weights.encoding import EncodedBlock


@dataclass(frozen=True)
class _Kept:
    block: int
    mode: Mode
    size: int
    base: bytes | None
    digest: bytes


class SpooledBlocks:
    """Written once, read once or more, gone when closed."""

    def __init__(self, folder: Path) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by close)
        self._kept: list[_Kept] = []

    def append(self, block: EncodedBlock) -> None:
        self._file.write(block.encoded.payload)
        self._kept.append(_Kept(block.block, block.encoded.mode, len(block.encoded.payload), block.base, block.digest))

    async def blocks(self) -> AsyncIterator[EncodedBlock]:
        self._file.seek(0)
        for kept in self._kept:
            payload = await asyncio.to_thread(self._file.read, kept.size)
            yield EncodedBlock(kept.block, Encoded(kept.mode, payload), kept.base, kept.digest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
