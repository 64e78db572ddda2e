"""The audit of a job, as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.api.data import Data
from trimtab.api.stage import Stage
from trimtab.dataflow.audit.columns import Histories, available, staged_histories, unasked
from trimtab.dataflow.audit.history import Line, histories, lines_of, trained_on
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
    """Groups, by policy, that could be trained and that nothing has become of yet."""
    columns: int = 0
    columns_beside: int = 0
    """That count for nothing: computed twice, too late, or not what was asked for."""
    staged: int = 0
    """Groups that wait for stages."""
    unasked: Sequence[str] = ()
    """What waits for a stage that is not asked: lost, in a job that is at rest."""


async def audit(
    bus: Bus,
    topology: JobTopology,
    *,
    data: Data | None = None,
    batch_sizes: Mapping[str, int] | None = None,
    ledger: str | None = None,
    trajectories: str | None = None,
    columns: str | None = None,
    stages: Sequence[Stage] = (),
) -> AuditReport:
    """Read the job's streams and judge them.

    `ledger`, `trajectories` and `columns` name mirrors to read in place of the job's own streams, which may have been
    trimmed.
    """
    streams = await read_streams(bus, topology, ledger=ledger, trajectories=trajectories, columns=columns)
    return judged(streams, data=data, batch_sizes=batch_sizes, stages=stages)


def judged(
    streams: Streams,
    *,
    data: Data | None = None,
    batch_sizes: Mapping[str, int] | None = None,
    stages: Sequence[Stage] = (),
) -> AuditReport:
    staged = staged_histories(streams, stages)
    lines = lines_of(streams.records)
    groups = trained_on(streams.headers)
    return AuditReport(
        violations=violations(streams, data=data, batch_sizes=batch_sizes, stages=stages),
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
        waiting=_waiting(streams, lines, staged),
        columns=len(streams.columns),
        columns_beside=len(streams.columns) - sum(len(one.taken) for one in staged.values()),
        staged=sum(1 for one in staged.values() if not one.over),
        unasked=unasked(streams, staged, stages),
    )


def _waiting(streams: Streams, lines: Mapping[str, Line], staged: Histories) -> dict[str, int]:
    complete = available(streams, staged)
    return {
        policy: len(complete.get(policy, {}).keys() - line.granted.keys() - line.dropped - line.filtered)
        for policy, line in lines.items()
        if not line.finished
    }
