"""Volumes of a real SeaweedFS whose end is zeros: what lies before it is read, and more is taken."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.embedded.weed_volumes import mend_volumes
from trimtab.fabric.objects.client import ObjectStore

_BODIES = {f"k{number}": os.urandom(37 * number + 1) for number in range(24)}


async def _fill(server: EmbeddedSeaweed) -> None:
    async with ObjectStore(server.settings) as store:
        for number, (key, body) in enumerate(_BODIES.items()):
            await store.put(key, body)
            if number % 4 == 3:
                await store.delete(key)


async def test_objects_before_an_end_of_zeros_are_read_and_more_are_taken(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with EmbeddedSeaweed(tmp_path) as server:
        await _fill(server)
        assert await asyncio.to_thread(mend_volumes, data) == [], "nothing is cut from what is whole"
    sizes = {path: path.stat().st_size for path in (*data.glob("*.idx"), *data.glob("*.dat"))}
    for path, size in sizes.items():
        # As the file system leaves what was appended and not synced: to the end of a block.
        os.truncate(path, size + 17 * 12 if path.suffix == ".idx" else -(-size // 4096) * 4096 + 4096)
    with EmbeddedSeaweed(tmp_path) as server:
        async with ObjectStore(server.settings) as store:
            for number, (key, body) in enumerate(_BODIES.items()):
                if number % 4 != 3:
                    assert (await store.get(key, max_bytes=10_000)).body == body
            await store.put("more", b"more")
            assert (await store.get("more", max_bytes=10)).body == b"more"


def test_a_volume_whose_index_names_what_is_not_there_ends_before_it(tmp_path: Path) -> None:
    with EmbeddedSeaweed(tmp_path) as server:
        asyncio.run(_fill(server))
    data = tmp_path / "data"
    (index,) = [path for path in data.glob("trimtab_*.idx") if path.stat().st_size]
    volume, entries = index.with_suffix(".dat"), index.stat().st_size // 17
    os.truncate(volume, volume.stat().st_size - 8)
    assert mend_volumes(data) == [index.stem]
    assert index.stat().st_size == 17 * (entries - 1)
    assert mend_volumes(data) == []
