"""Pointers in a real store that has kept their names and lost what they say, as it does when the power goes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.pointers import announce_pointer, mend_pointers
from trimtab.fabric.settings import ObjectStoreSettings

_OLD, _NEW = os.urandom(900), os.urandom(900)


def _settings(server: EmbeddedSeaweed, folder: Path) -> ObjectStoreSettings:
    return server.settings.model_copy(update={"prefix": "job", "unsynced_folder": folder})


def _volumes(folder: Path) -> dict[Path, int]:
    """What objects say lies in these; their names lie elsewhere."""
    return {path: path.stat().st_size for suffix in ("dat", "idx") for path in (folder / "data").glob(f"*.{suffix}")}


@pytest.mark.slow
async def test_a_pointer_that_cannot_be_read_says_what_was_announced_or_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with EmbeddedSeaweed(folder) as server:
        async with ObjectStore(_settings(server, folder)) as store:
            await store.put("checkpoints/whole/latest.json", _OLD)
            await announce_pointer(store, "checkpoints/solver/latest.json", _NEW, deadline_s=60.0)
            synced = await asyncio.to_thread(_volumes, folder)
            for lost in ("checkpoints/solver/latest.json", "weights/solver/latest.json"):
                await store.put(lost, _NEW)
    for path in await asyncio.to_thread(_volumes, folder):
        os.truncate(path, synced.get(path, 0))
    with EmbeddedSeaweed(folder) as server:
        async with ObjectStore(_settings(server, folder)) as store:
            assert await mend_pointers(store, "checkpoints/", removes=False) == ["checkpoints/solver/latest.json"]
            assert (await store.get("checkpoints/solver/latest.json", max_bytes=1000)).body == _NEW
            assert (await store.get("checkpoints/whole/latest.json", max_bytes=1000)).body == _OLD
            assert await mend_pointers(store, "weights/", removes=True) == ["weights/solver/latest.json"]
            assert [info.key async for info in store.scan("weights/")] == []
            assert await mend_pointers(store, "", removes=False) == []
