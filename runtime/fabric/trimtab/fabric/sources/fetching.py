"""Fetches what a job wants, each source once for all who share a cache: two pods of a node with one volume, or two runs
on one machine, wait for one another.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import structlog

from trimtab.api.source_uri import HubSource, ObjectSource, folder_name
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.objects.below import NoRoom, NothingThere, fetch_below
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import InvalidKey, ObjectStoreError, StoreRefused, StoreUnauthorized
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.sources.errors import SourceAway, SourceRefused
from trimtab.fabric.sources.hub import HubAccess, fetch_from_hub
from trimtab.fabric.sources.wants import Want

_log = structlog.get_logger(__name__)
ATTEMPTS = 5
BACKOFF = FullJitter(base_s=1.0, cap_s=30.0)
_LOCK_WAIT_S = 3600.0
_LOCK_LOOK_S = (0.05, 0.5)


@dataclass(frozen=True, kw_only=True)
class Fetcher:
    """`cache` holds what comes from object storage, locks, and what has been compared. The hub has a cache of its own,
    by the usual variables."""

    cache: Path
    hub: HubAccess
    object_store: ObjectStoreSettings
    """Address and credentials; the bucket is the source's."""
    attempts: int = ATTEMPTS
    backoff: FullJitter = BACKOFF

    async def fetch_all(self, wants: Iterable[Want], places: Path) -> None:
        """Every source is then a link in `places`. One that is there stays: a revision that moves, such as a branch,
        must not move under a job. Raises SourceRefused or SourceAway."""
        by_folder: dict[str, list[Want]] = {}
        for want in wants:
            by_folder.setdefault(folder_name(want.source), []).append(want)
        for name, same in by_folder.items():
            async with self._turn(name):
                for want in same:
                    folder = await self._fetch(_pinned(want, places / name), name)
                _link(places / name, folder)

    async def _fetch(self, want: Want, name: str) -> Path:
        for attempt in range(self.attempts):
            try:
                return await self._attempt(want, name)
            except SourceAway as away:
                if attempt == self.attempts - 1:
                    raise
                _log.warning("source_away", reason=str(away))
                await asyncio.sleep(self.backoff.delay_s(attempt))
        raise AssertionError("there is at least one attempt")

    async def _attempt(self, want: Want, name: str) -> Path:
        source = want.source
        if isinstance(source, HubSource):
            # Each of its requests has a timeout of its own.
            return await asyncio.to_thread(
                fetch_from_hub,
                source,
                self.hub,
                field=want.field,
                files=want.files,
                but=want.but,
                checked=self.cache / "checked" / f"{name}.json",
            )
        return await self._from_objects(want, source, self.cache / "objects" / name)

    async def _from_objects(self, want: Want, source: ObjectSource, home: Path) -> Path:
        def wanted(path: PurePosixPath) -> bool:
            name = str(path)
            return any(fnmatchcase(name, file) for file in want.files) and not any(
                fnmatchcase(name, not_this) for not_this in want.but
            )

        told = f"{want.field}: {source.uri}"
        settings = self.object_store.model_copy(update={"bucket": source.bucket, "prefix": ""})
        try:
            async with ObjectStore(settings) as store:
                await fetch_below(store, f"{source.prefix.rstrip('/')}/", home, wanted=wanted)
        except NothingThere:
            raise SourceRefused(f"{told}: there are no files of a model in transformers format below it") from None
        except NoRoom as shortage:
            raise SourceRefused(f"{told} {shortage}; make room, or give the pods a larger volume") from None
        except (StoreUnauthorized, StoreRefused, InvalidKey) as error:
            raise SourceRefused(f"{told}: cannot be read: {error}") from None
        except ObjectStoreError as error:
            raise SourceAway(f"{told}: the store gives no answer to go on with: {error}") from None
        return home

    @contextlib.asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """The kernel ends the turn of a process that dies."""
        lock = self.cache / "locks" / name
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("a") as file:
            try:
                async with asyncio.timeout(_LOCK_WAIT_S):
                    while not _is_taken(file.fileno()):  # noqa: ASYNC110 - another process has it
                        await asyncio.sleep(random.uniform(*_LOCK_LOOK_S))  # noqa: S311 - spreads those who wait
            except TimeoutError:
                raise SourceAway(f"{lock}: another process has been fetching for {_LOCK_WAIT_S:g} s") from None
            yield


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pinned(want: Want, link: Path) -> Want:
    """At the commit that an earlier run has fetched, where it has."""
    source = want.source
    if not isinstance(source, HubSource) or not link.is_symlink():
        return want
    return Want(
        field=want.field,
        source=HubSource(
            kind=source.kind, repository=source.repository, revision=link.readlink().name, path=source.path
        ),
        files=want.files,
        but=want.but,
    )


def _link(link: Path, folder: Path) -> None:
    """Relative, as pods see a volume at places of their own; replaced in one step."""
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(folder.resolve(), link.parent.resolve()))
    fresh.replace(link)
