"""Looks for groups that were forgotten: nothing else tells them from those that still wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from trimtab.dataflow.audit.arrivals import deadlines
from trimtab.dataflow.audit.streams import Streams
from trimtab.dataflow.ledger.records import GroupsDropped, GroupsSifted, Record, StepGranted


def passed_over(streams: Streams) -> Iterable[str]:
    """Of jobs in which every trainer takes its own stream in the order of deadlines, as they do without mix."""
    for policy, own_deadlines in deadlines(streams.headers).items():
        own = [record for record in streams.records if getattr(record, "policy", None) == policy]
        yield from _passed_over_by(policy, own, own_deadlines)


def _passed_over_by(policy: str, records: Sequence[Record], deadlines: Mapping[str, tuple[int, int]]) -> Iterable[str]:
    """Filters are asked in the order of arrival, and batches are made earliest deadline first: a group that was there
    when one behind it was taken has been forgotten. Without filters, all was there that arrived before the newest group
    of a step.
    """
    sifts = any(isinstance(record, GroupsSifted) for record in records)
    arriving = deque(deadlines)
    there: dict[str, tuple[int, int]] = {}
    gone: set[str] = set()

    def arrived(*before: str) -> Iterable[str]:
        newest = max((deadlines[group_id][1] for group_id in before if group_id in deadlines), default=-1)
        while arriving and deadlines[arriving[0]][1] <= newest:
            yield arriving.popleft()

    for record in records:
        if isinstance(record, GroupsSifted):
            kept = [*record.kept, *(reduced.group_id for reduced in record.reduced)]
            gone.update(record.left_out)
            for group_id in arrived(*kept, *record.left_out):
                if group_id not in kept and group_id not in gone:
                    yield f"{policy}: group {group_id} passed over by the filters"
            there |= {group_id: deadlines[group_id] for group_id in kept if group_id in deadlines}
        if isinstance(record, GroupsDropped | StepGranted):
            gone.update(record.dropped)
        if isinstance(record, StepGranted):
            gone.update(record.groups)
            there |= {} if sifts else {group_id: deadlines[group_id] for group_id in arrived(*record.groups)}
            there = {group_id: deadline for group_id, deadline in there.items() if group_id not in gone}
            latest = max((deadlines[group_id] for group_id in record.groups if group_id in deadlines), default=(-1, -1))
            for group_id in [group_id for group_id, deadline in there.items() if deadline < latest]:
                version, _ = there.pop(group_id)
                yield f"{policy}: group {group_id} of version {version} passed over by step {record.step}"
