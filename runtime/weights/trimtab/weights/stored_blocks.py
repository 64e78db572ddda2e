"""The blocks of a version that are in the store already: those of one rank, and those of all ranks as one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import msgspec

from trimtab.weights.store.manifest import Chunk, Piece


class StoredBlocks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chunks, and where in them each block lies; in the order of the blocks."""

    chunks: tuple[Chunk, ...] = ()
    pieces: tuple[Piece, ...] = ()

    def digests(self) -> dict[int, bytes]:
        """Of each block's content."""
        return {piece.block: bytes.fromhex(piece.digest) for piece in self.pieces}


def joined(parts: Iterable[StoredBlocks]) -> StoredBlocks:
    """No block may be in two parts."""
    held = list(parts)
    chunks = tuple(dict.fromkeys(chunk for part in held for chunk in part.chunks))
    number = {chunk: place for place, chunk in enumerate(chunks)}
    pieces = [
        msgspec.structs.replace(piece, chunk=number[part.chunks[piece.chunk]]) for part in held for piece in part.pieces
    ]
    pieces.sort(key=lambda piece: piece.block)
    for piece, following in pairwise(pieces):
        if piece.block == following.block:
            raise ValueError(f"two ranks have stored block {piece.block}")
    return StoredBlocks(chunks=chunks, pieces=tuple(pieces))
