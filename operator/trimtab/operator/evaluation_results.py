"""What evaluations have said of a job's versions, read at once from its bucket. Pods of the job write it, as much as
they like: what can matter is kept, and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusNotFound, BusTimeout
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch, SnapshotComplete
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.operator.resume_source import MOST_CHECKPOINTS

_log = structlog.get_logger(__name__)
_EVERY_RESULT = "*.evaluation.*.*"
_BENCHMARKS = 32
"""As many as a job may have."""


class NewestResults:
    """Of each of these policies those of its newest versions."""

    def __init__(self, policies: Collection[str], *, most: int = MOST_CHECKPOINTS) -> None:
        self._most = most
        self._found: dict[str, dict[str, dict[int, EvaluationResult]]] = {policy: {} for policy in policies}

    def note(self, result: EvaluationResult) -> None:
        benchmarks = self._found.get(result.policy)
        if benchmarks is None or (result.benchmark not in benchmarks and len(benchmarks) >= _BENCHMARKS):
            return
        versions = benchmarks.setdefault(result.benchmark, {})
        versions[result.version] = result
        if len(versions) > 2 * self._most:
            for version in sorted(versions)[: -self._most]:
                del versions[version]

    @property
    def results(self) -> list[EvaluationResult]:
        return [
            result
            for benchmarks in self._found.values()
            for versions in benchmarks.values()
            for result in versions.values()
        ]


async def results_on(
    bus: Bus, topology: JobTopology, policies: Collection[str], *, deadline_s: float
) -> list[EvaluationResult]:
    """None of a job that has said nothing yet. Raises BusError."""
    bucket, found = topology.balance, NewestResults(policies)
    try:
        async with asyncio.timeout(deadline_s):
            try:
                await api_call(bus, f"STREAM.INFO.{bucket.stream}", deadline_s=deadline_s)
            except BusNotFound:
                return []
            async with KvWatch(KeyValue(bus, bucket), keys=_EVERY_RESULT) as watch:
                while not isinstance(change := await watch.next(deadline_s=deadline_s), SnapshotComplete):
                    if isinstance(change, Entry):
                        _note(found, change)
    except TimeoutError:
        raise BusTimeout(f"bucket {bucket.name!r} was not read within {deadline_s:.3g} s") from None
    return found.results


def _note(found: NewestResults, entry: Entry) -> None:
    try:
        found.note(decode(entry.value, EvaluationResult))
    except WireError as error:
        _log.warning("evaluation_unreadable", key=entry.key, reason=str(error))
