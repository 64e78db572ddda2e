"""The audit of a job, as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.api.data import Data
from trimtab.dataflow.audit.history import Line, deadlines, histories, lines_of, trained_on
from trimtab.dataflow.audit.streams import Streams, read_streams
from trimtab.dataflow.audit.violations import violations
from trimtab.dataflow.ledger.records import StepGranted
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    violations: list[str]
    trained: dict[str, int]
    """Episodes granted, by policy: once for every step that has them."""
    arrived: int
    duplicates_seen: int
    """Rows that are of no episode: stored twice, or of a run that was not the first to be whole."""
    steps: dict[str, int]
    waiting: dict[str, int]
    """Complete groups, by policy, that nothing has become of yet."""


async def audit(
    bus: Bus,
    topology: JobTopology,
    *,
    data: Data | None = None,
    batch_sizes: Mapping[str, int] | None = None,
    ledger: str | None = None,
    trajectories: str | None = None,
) -> AuditReport:
    """Read the job's streams and judge them.

    `ledger` and `trajectories` name mirrors to read in place of the job's own streams, which may have been
    trimmed.
    """
    streams = await read_streams(bus, topology, ledger=ledger, trajectories=trajectories)
    return judged(streams, data=data, batch_sizes=batch_sizes)


def judged(streams: Streams, *, data: Data | None = None, batch_sizes: Mapping[str, int] | None = None) -> AuditReport:
    lines = lines_of(streams.records)
    groups = trained_on(streams.headers)
    return AuditReport(
        violations=violations(streams, data=data, batch_sizes=batch_sizes),
        trained={
            policy: sum(
                groups[group_id].trained_episodes
                for record in streams.records
                if isinstance(record, StepGranted) and record.policy == policy
                for group_id in (*record.groups, *record.replayed)
                if group_id in groups
            )
            for policy in lines
        },
        arrived=len(streams.headers),
        duplicates_seen=sum(group.beside for group in histories(streams.headers).values()),
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
