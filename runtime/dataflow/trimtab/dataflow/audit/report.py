"""The audit of a job, as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.api.data import Data
from trimtab.dataflow.audit.history import Line, deadlines, lines_of, sample_key
from trimtab.dataflow.audit.streams import Streams, read_streams
from trimtab.dataflow.audit.violations import violations
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    violations: list[str]
    trained: dict[str, int]
    """Samples granted, by policy."""
    arrived: int
    duplicates_seen: int
    """Trajectories that had arrived before: stored twice, to be trained once."""
    steps: dict[str, int]
    waiting: dict[str, int]
    """Complete groups, by policy, that nothing has become of yet."""


async def audit(
    bus: Bus,
    topology: JobTopology,
    *,
    data: Data | None = None,
    ledger: str | None = None,
    trajectories: str | None = None,
) -> AuditReport:
    """Read the job's streams and judge them.

    `ledger` and `trajectories` name mirrors to read in sample_key of the job's own streams, which may have been
    trimmed.
    """
    return judged(await read_streams(bus, topology, ledger=ledger, trajectories=trajectories), data=data)


def judged(streams: Streams, *, data: Data | None = None) -> AuditReport:
    lines = lines_of(streams.records)
    group_size = next((header.group_size for header in streams.headers if header.benchmark is None), 0)
    return AuditReport(
        violations=violations(streams, data=data),
        trained={policy: line.groups * group_size for policy, line in lines.items()},
        arrived=len(streams.headers),
        duplicates_seen=len(streams.headers) - len({sample_key(header) for header in streams.headers}),
        steps={policy: line.steps for policy, line in lines.items()},
        waiting=_waiting(streams, lines),
    )


def _waiting(streams: Streams, lines: Mapping[str, Line]) -> dict[str, int]:
    complete = deadlines(streams.headers)
    return {
        policy: len(complete.get(policy, {}).keys() - line.granted.keys() - line.dropped - line.filtered)
        for policy, line in lines.items()
        if not line.finished
    }
