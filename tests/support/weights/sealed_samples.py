"""Manifests and catalogues in miniature."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable

from trimtab.weights.digests import root_digest
from trimtab.weights.layout import StateLayout
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.manifest import FORMAT, Chunk, Piece, WeightManifest
from trimtab.weights.store.position import Position

MIB = 1 << 20
# One block of its own for each tensor.
LAYOUT = StateLayout.of(dict.fromkeys("abc", ("BF16", (8 * MIB,))))
BEFORE, AFTER = Position(1, 4), Position(1, 5)


def sha(text: object) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()


def anchor(target: Position = BEFORE, *, policy: str = "p", seed: int = 0) -> WeightManifest:
    rng = random.Random(seed)
    digests = [rng.randbytes(16) for _ in LAYOUT.blocks]
    return WeightManifest(
        format=FORMAT,
        policy=policy,
        target=target,
        base=None,
        base_root=None,
        root=root_digest(LAYOUT, digests),
        layout=LAYOUT.digest,
        header=LAYOUT.header,
        chunks=(Chunk(sha(("chunk", seed)), 300),),
        pieces=tuple(
            Piece(block=block, mode="whole", chunk=0, offset=100 * block, size=100, base=None, digest=digest.hex())
            for block, digest in enumerate(digests)
        ),
        created_at=1e9,
    )


def delta(target: Position = AFTER, base: Position = BEFORE, *, policy: str = "p", seed: int = 0) -> WeightManifest:
    """A random one: any number of chunks and changed blocks, including none."""
    rng = random.Random(seed)
    chunks: list[Chunk] = []
    pieces: list[Piece] = []
    block = 0
    for number in range(rng.randrange(4)):
        offset = 0
        for _ in range(rng.randrange(1, 5)):
            size = rng.randrange(1, 5000)
            pieces.append(
                Piece(
                    block=block,
                    mode=rng.choice(["fast", "compact", "dense", "whole"]),
                    chunk=number,
                    offset=offset,
                    size=size,
                    base=rng.choice([rng.randbytes(16).hex(), None]),
                    digest=rng.randbytes(16).hex(),
                )
            )
            offset += size
            block += rng.randrange(1, 4)
        chunks.append(Chunk(rng.randbytes(32).hex(), offset))
    return WeightManifest(
        format=FORMAT,
        policy=policy,
        target=target,
        base=base,
        base_root=rng.randbytes(32).hex(),
        root=rng.randbytes(32).hex(),
        layout=LAYOUT.digest,
        header=None,
        chunks=tuple(chunks),
        pieces=tuple(pieces),
        created_at=1e9 + seed,
    )


def entry(target: Position, base: Position | None = None, *, size: int = 1000) -> Entry:
    return Entry(
        target=target, base=base, manifest=sha(("manifest", target, base)), bytes=size, root=sha(("root", target))
    )


def catalogue(entries: Iterable[Entry], *, epoch: int = 9) -> Latest:
    return Latest(epoch=epoch).adding(*entries)
