"""Keeps a host copy of a policy's newest weights: finds the cheapest way there, fetches what is missing, verifies it,
and commits it in one step.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectNotFound, ObjectStoreError, StoreTimeout
from trimtab.fabric.objects.upload import Progress
from trimtab.fabric.signing import Verifier
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.apply.copy_files import DamagedCopy, take_lock
from trimtab.weights.apply.host_copy import HostCopy
from trimtab.weights.apply.transaction import PreparedUpdate
from trimtab.weights.assembly import ChunkFiles, WrongWeights, build, plan_journey, prepare
from trimtab.weights.store.chunk_fetch import DamagedChunk, MissingChunk, clear_spool, fetch_chunks
from trimtab.weights.store.chunk_writer import CHUNK_BYTES
from trimtab.weights.store.latest import InvalidPointer, LatestPointer, PointerRolledBack
from trimtab.weights.store.leases import Lease, drop_lease, kept_lease, write_lease
from trimtab.weights.store.manifest import InvalidManifest, WeightManifest
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.position import Position
from trimtab.weights.store.rate import RateLimit
from trimtab.weights.store.route import BudgetExceeded, NoRoute, Route, as_of, cheapest_route

_log = structlog.get_logger(__name__)
_ATTEMPTS = 3
_MOST_THREADS = 8
_DIGEST_PREFIX = "sha256:"


@dataclass(frozen=True, kw_only=True)
class PullLimits:
    """What a pull may cost: bytes in all, and a rate shared by all pulls of the process. Without a rate, what is larger
    than `range_bytes` is fetched by several requests.
    """

    max_bytes: int | None = None
    rate: RateLimit | None = None
    parallel: int = 16
    range_bytes: int = CHUNK_BYTES


NO_LIMITS = PullLimits()
PULL_FAILURES = (
    ObjectStoreError,
    InvalidManifest,
    InvalidPointer,
    PointerRolledBack,
    DamagedChunk,
    MissingChunk,
    NoRoute,
    BudgetExceeded,
    WrongWeights,
)
"""What a pull can fail with and a later one may not."""


class WeightPuller:
    """One policy's host copy in `folder`, with `spool` for what is being fetched. Open it, and close it."""

    def __init__(
        self, store: ObjectStore, policy: str, verifier: Verifier, *, folder: Path, spool: Path, member: str,
        limits: PullLimits = NO_LIMITS, target: Position | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        """`target` is a version to bring the copy to in place of the newest, also back from a later one."""
        self._store = store
        self._policy = policy
        self._manifests = ManifestReader(store, policy, verifier)
        self._pointer = LatestPointer(store, policy)
        self._folder = folder
        self._spool = spool
        self._member = member
        self._limits = limits
        self._target = target
        self._executor = ThreadPoolExecutor(
            threads or min(_MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="decode"
        )
        self._copy: HostCopy | None = None
        self._is_pulling = False
        self._locks = ExitStack()

    async def open(self) -> None:
        """Take over what an earlier process left, finishing a commit that it had begun. Raises CopyInUse."""
        # The copy has a lock of its own; this one also keeps others from the spool before there is a copy.
        take_lock(self._spool / "puller.lock", self._locks)
        self._copy = await asyncio.to_thread(HostCopy.open, self._folder, self._spool)

    async def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._copy is not None:
            self._copy.close()
        self._locks.close()

    @property
    def folder(self) -> Path:
        """Holds model.safetensors, complete between two commits."""
        return self._folder

    @property
    def copy(self) -> HostCopy | None:
        return self._copy

    @property
    def held(self) -> Position | None:
        return Position(self._copy.held.epoch, self._copy.held.version) if self._copy is not None else None

    async def pull(
        self, pointer: WeightPointer | None = None, *, deadline_s: float, progress: Progress | None = None
    ) -> Position:
        """Bring the copy to the newest version and say which that is."""
        update = await self.prepare(pointer, deadline_s=deadline_s, progress=progress)
        if update is not None:
            with update:
                await asyncio.to_thread(update.commit)
        held = self.held
        assert held is not None, "a pull without a copy builds one"
        await self.renew_lease(deadline_s=deadline_s)
        return held

    async def prepare(
        self, pointer: WeightPointer | None = None, *, deadline_s: float, progress: Progress | None = None
    ) -> PreparedUpdate | None:
        """Everything but the commit. None when there is nothing to commit: the copy is new, or the newest already.

        `pointer` is the news that a version is out; with it the usual case, the next delta, takes two round trips.
        What was collected in the meantime is planned again. Raises NoRoute, BudgetExceeded, InvalidManifest,
        DamagedChunk, WrongWeights.
        """
        try:
            async with asyncio.timeout(deadline_s):
                for attempt in range(1, _ATTEMPTS):
                    try:
                        return await self._prepare(pointer if attempt == 1 else None, deadline_s, progress)
                    except (MissingChunk, ObjectNotFound) as error:
                        _log.info("pull_planned_again", policy=self._policy, reason=str(error))
                    except WrongWeights as error:
                        if not await self._discard_damaged_copy():
                            raise
                        _log.warning("host_copy_discarded", policy=self._policy, reason=str(error))
                return await self._prepare(None, deadline_s, progress)
        except TimeoutError:
            raise StoreTimeout(f"weights of {self._policy}: not pulled within {deadline_s:.3g} s") from None

    async def _discard_damaged_copy(self) -> bool:
        """Whether the copy is not what it says it is, and therefore gone: the next attempt begins with an anchor."""
        if self._copy is None:
            return False
        try:
            await asyncio.to_thread(self._copy.verify)
        except DamagedCopy:
            self._copy.close()
            self._copy = None
            return True
        return False

    async def renew_lease(self, *, deadline_s: float) -> None:
        """Tells garbage collection what this member holds. To be repeated well within the lease's time to live; a pull
        that takes long renews it by itself.
        """
        if not self._is_pulling:
            await write_lease(self._store, self._policy, self._lease(), deadline_s=deadline_s)

    async def give_up_lease(self, *, deadline_s: float) -> None:
        await drop_lease(self._store, self._policy, self._member, deadline_s=deadline_s)

    async def _prepare(
        self, pointer: WeightPointer | None, deadline_s: float, progress: Progress | None
    ) -> PreparedUpdate | None:
        begins = Position(pointer.epoch, pointer.base_version) if pointer and pointer.base_version is not None else None
        if pointer is not None and begins is not None and begins == self.held:
            return await self._assemble([await self._next(pointer, deadline_s=deadline_s)], deadline_s, progress)
        latest = await self._pointer.read(deadline_s=deadline_s)
        if latest is None:
            raise NoRoute(f"no trainer of {self._policy} has claimed this store yet")
        if self._target is not None:
            if not any(entry.target == self._target for entry in latest.catalogue):
                raise NoRoute(f"{self._target} of {self._policy} is not in the store any more")
            latest = as_of(latest, self._target)
        route = cheapest_route(latest, self.held, max_bytes=self._limits.max_bytes)
        if not route.entries:
            return None
        _log.info("weights_routed", policy=self._policy, hops=len(route.entries), bytes=route.bytes)
        self._is_pulling = True
        try:
            async with kept_lease(self._store, self._policy, self._lease(route)):
                manifests = [await self._manifests.read(entry, deadline_s=deadline_s) for entry in route.entries]
                return await self._assemble(manifests, deadline_s, progress)
        finally:
            self._is_pulling = False

    async def _assemble(
        self, manifests: Sequence[WeightManifest], deadline_s: float, progress: Progress | None
    ) -> PreparedUpdate | None:
        copy = self._copy
        journey = plan_journey(
            manifests, layout=copy.layout if copy else None, held=copy.held if copy and manifests[0].base else None
        )
        if copy is not None and copy.layout.digest != journey.layout.digest:
            # Another model: there is nothing to compare with.
            copy.close()
            self._copy = copy = None
        clock = asyncio.get_running_loop().time
        began = clock()
        files = await fetch_chunks(
            self._store,
            journey.chunks(),
            spool=self._spool,
            rate=self._limits.rate,
            parallel=self._limits.parallel,
            deadline_s=deadline_s,
            progress=progress,
            range_bytes=self._limits.range_bytes,
        )
        fetched = clock()
        chunks, update = ChunkFiles(files), None
        if copy is None:
            self._copy = await asyncio.to_thread(build, self._folder, self._spool, journey, chunks, self._executor)
        else:
            update = await asyncio.to_thread(prepare, copy, journey, chunks, self._executor)
        _log.info(
            "weights_prepared",
            policy=self._policy,
            version=manifests[-1].target.version,
            blocks=len(journey.stages),
            fetch_s=round(fetched - began, 4),
            decode_s=round(clock() - fetched, 4),
        )
        # Kept until here: a pull that is interrupted before finds them again.
        await asyncio.to_thread(clear_spool, self._spool)
        return update

    def _lease(self, route: Route | None = None) -> Lease:
        pins = tuple(entry.manifest for entry in route.entries) if route else ()
        return Lease(member=self._member, held=self.held, pins=pins)

    async def _next(self, pointer: WeightPointer, *, deadline_s: float) -> WeightManifest:
        """The delta from what is held to what was announced. It is the newest, so no collection takes it away."""
        sha256 = pointer.manifest_digest.removeprefix(_DIGEST_PREFIX)
        manifest = await self._manifests.read_pinned(pointer.manifest_key, sha256, deadline_s=deadline_s)
        if manifest.policy != self._policy or manifest.target != Position(pointer.epoch, pointer.version):
            raise InvalidManifest(f"{pointer.manifest_key} is of {manifest.policy}, {manifest.target}")
        if manifest.base != self.held:
            raise InvalidManifest(f"{pointer.manifest_key} begins at {manifest.base}, not at {self.held}")
        return manifest
