"""The ranks that publish a policy's weights together: each writes the blocks it owns, and one of them signs."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

Word = TypeVar("Word")


class PublishingGroup(Protocol):
    """All ranks make the same calls in the same order."""

    @property
    def size(self) -> int: ...

    @property
    def signs(self) -> bool:
        """Whether this rank is the first, which signs."""

    async def gather(self, word: bytes) -> list[bytes]:
        """What each rank came with, in the order of the ranks, once all have come. A rank that died is an error."""


class Alone:
    """One process that has all blocks."""

    size = 1
    signs = True

    async def gather(self, word: bytes) -> list[bytes]:
        return [word]


async def told_by_all(group: PublishingGroup, word: Word, kind: type[Word]) -> list[Word]:
    """What each rank says."""
    return [msgspec.msgpack.decode(said, type=kind) for said in await group.gather(msgspec.msgpack.encode(word))]


async def told_by_signer(group: PublishingGroup, word: Word | None, kind: type[Word]) -> Word:
    """What the rank that signs says; the others come with nothing."""
    said = await group.gather(b"" if word is None else msgspec.msgpack.encode(word))
    return msgspec.msgpack.decode(said[0], type=kind)
