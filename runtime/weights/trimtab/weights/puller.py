"""Brings a published version to this machine, verified against its digests, as a folder an engine can load."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.download import DownloadShape, download_to_file
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.manifest import MAX_MANIFEST_BYTES, InvalidManifest, decode_manifest

_CHUNK = 4 << 20


class WeightPuller:
    """Keeps the versions of one policy under one folder, each complete or absent."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self._store = store
        self._folder = folder
        # What an earlier process left may be half a version.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    async def pull(self, pointer: WeightPointer, *, deadline_s: float) -> Path:
        stored = await self._store.get(pointer.manifest_key, max_bytes=MAX_MANIFEST_BYTES, deadline_s=deadline_s)
        manifest = decode_manifest(
            stored.body,
            expected_digest=pointer.manifest_digest,
            policy=pointer.policy,
            version=pointer.version,
        )
        target = self._folder / f"{pointer.epoch}-{pointer.version}"
        target.mkdir(exist_ok=True)
        for file in manifest.files:
            path = target / file.name
            await download_to_file(
                self._store, file.key, path, deadline_s=deadline_s, shape=DownloadShape(max_bytes=file.size)
            )
            if await asyncio.to_thread(_sha256, path) != file.sha256:
                path.unlink()
                raise InvalidManifest(f"{file.key} does not have the digest that its manifest names")
        return target

    async def keep_only(self, folder: Path) -> None:
        """Drop all versions but the one in use."""
        for other in self._folder.iterdir():
            if other != folder:
                await asyncio.to_thread(shutil.rmtree, other)


def _sha256(path: Path) -> str:
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()
