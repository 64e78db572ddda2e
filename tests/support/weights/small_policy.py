"""A policy of a few small versions in a real bucket, for tests that do something to its objects and put it right."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.weights.published import NEWEST, D, Published, publish_versions
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.weights.layout import StateLayout
from trimtab.weights.puller import PULL_FAILURES, WeightPuller
from trimtab.weights.store.position import Position

LAYOUT = StateLayout.of(
    {
        "embed": ("BF16", (1000, 32)),
        "head": ("F16", (1000, 32)),
        "up": ("I16", (512, 64)),
        "down": ("U16", (512, 64)),
        "norm": ("F32", (256,)),
        "q": ("I8", (300, 7)),
    }
)
"""Six blocks, because each dtype has one of its own."""
CHUNK_BYTES = 32 << 10


@pytest.fixture(scope="module")
def published(
    nats_settings: NatsSettings, object_store_settings: ObjectStoreSettings, tmp_path_factory: pytest.TempPathFactory
) -> Published:
    """Every test leaves it as it was. Chunks are small, so that there are many."""
    folder = tmp_path_factory.mktemp("published")
    return asyncio.run(publish_versions(nats_settings, object_store_settings, folder, LAYOUT, chunk_bytes=CHUNK_BYTES))


@pytest.fixture
async def store(published: Published) -> AsyncIterator[ObjectStore]:
    async with ObjectStore(published.settings) as opened:
        yield opened


@pytest.fixture
async def puller(published: Published, store: ObjectStore, tmp_path: Path) -> AsyncIterator[WeightPuller]:
    puller = await published.puller(store, tmp_path / "pool")
    yield puller
    await puller.close()


def flipped(body: bytes, chance: random.Random) -> bytes:
    changed = bytearray(body)
    changed[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def content(puller: WeightPuller) -> bytes:
    return (puller.folder / "model.safetensors").read_bytes()


async def refusal(published: Published, puller: WeightPuller) -> Exception:
    """What a pull fails with; the copy is still version 0, bit for bit."""
    with pytest.raises(PULL_FAILURES) as refused:
        await puller.pull(deadline_s=D)
    assert puller.held == Position(1, 0)
    assert content(puller) == published.weights(0)
    return refused.value


async def pulls_newest(published: Published, puller: WeightPuller) -> None:
    assert await puller.pull(deadline_s=D) == Position(1, NEWEST)
    assert content(puller) == published.weights(NEWEST)
