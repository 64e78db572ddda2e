"""Writing and reading sealed manifests. What was read once is kept for a while, for they never change."""

from __future__ import annotations

import contextlib
from collections import OrderedDict

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.conditional import put_if_absent
from trimtab.fabric.objects.errors import ObjectTooLarge, PreconditionFailed
from trimtab.fabric.signing import Signer, Verifier
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.in_flight import Publication
from trimtab.weights.store.manifest import (
    MAX_MANIFEST_BYTES,
    InvalidManifest,
    WeightManifest,
    check_entry,
    open_sealed,
    seal,
    unseal,
)


async def write_manifest(
    store: ObjectStore, manifest: WeightManifest, signer: Signer, *, publication: Publication, deadline_s: float
) -> Entry:
    """Puts the sealed manifest where the entry that it returns will lead; all its chunks must be there already."""
    sealed = seal(manifest, signer)
    entry = manifest.entry(sealed)
    key = entry.key(manifest.policy)
    await publication.claim(key)
    with contextlib.suppress(PreconditionFailed):  # named by its content, it is the same
        await put_if_absent(store, key, sealed, deadline_s=deadline_s)
    return entry


class ManifestReader:
    """Reads manifests of one policy, with the newest `cached` in memory. Raises InvalidManifest with key and reason."""

    def __init__(self, store: ObjectStore, policy: str, verifier: Verifier, *, cached: int = 64) -> None:
        self._store = store
        self._policy = policy
        self._verifier = verifier
        self._cached = cached
        self._known: OrderedDict[str, WeightManifest] = OrderedDict()

    async def read(self, entry: Entry, *, deadline_s: float) -> WeightManifest:
        """The manifest that the entry names. Raises ObjectNotFound when it was collected."""
        key = entry.key(self._policy)
        known = self._recall(entry.manifest)
        try:
            if known is not None:
                check_entry(known, policy=self._policy, entry=entry)
                return known
            body = await self._fetch(key, deadline_s=deadline_s)
            manifest = open_sealed(body, verifier=self._verifier, policy=self._policy, entry=entry)
        except InvalidManifest as error:
            raise InvalidManifest(f"{self._store.where(key)} is refused: {error}") from None
        return self._remember(entry.manifest, manifest)

    async def read_pinned(self, key: str, sha256: str, *, deadline_s: float) -> WeightManifest:
        """A manifest that is no longer in the catalogue, known by its digest alone."""
        known = self._recall(sha256)
        if known is not None:
            return known
        try:
            body = await self._fetch(key, deadline_s=deadline_s)
            manifest = unseal(body, sha256=sha256, verifier=self._verifier)
        except InvalidManifest as error:
            raise InvalidManifest(f"{self._store.where(key)} is refused: {error}") from None
        return self._remember(sha256, manifest)

    async def _fetch(self, key: str, *, deadline_s: float) -> bytes:
        try:
            return (await self._store.get(key, max_bytes=MAX_MANIFEST_BYTES, deadline_s=deadline_s)).body
        except ObjectTooLarge as error:
            raise InvalidManifest(f"it has {error.size} bytes, more than {error.limit}") from None

    def _recall(self, sha256: str) -> WeightManifest | None:
        if sha256 in self._known:
            self._known.move_to_end(sha256)
        return self._known.get(sha256)

    def _remember(self, sha256: str, manifest: WeightManifest) -> WeightManifest:
        self._known[sha256] = manifest
        while len(self._known) > self._cached:
            self._known.popitem(last=False)
        return manifest
