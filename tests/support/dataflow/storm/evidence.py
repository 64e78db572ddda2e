"""Judges what workers and ranks noted themselves: the ledger's word is only good if it is what they saw."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from tests.support.dataflow.storm.site import (
    BATCH,
    GROUP,
    MIN_TOKENS,
    RANKS,
    STALENESS,
    Durable,
    Leased,
    Note,
    Row,
    Stored,
)
from trimtab.dataflow.audit.streams import Streams
from trimtab.dataflow.ledger.records import GroupsDropped, GroupsFiltered, StepGranted
from trimtab.fabric.wire.header import TrajectoryHeader

SampleKey = tuple[str, str, int]
"""Policy, group and index: what a sample is, whoever made it and under whatever id."""


def faults(notes: Sequence[Note], streams: Streams) -> list[str]:
    """What is wrong, one sentence each. `streams` must be whole: sequence n is the n-th header."""
    leased = [note for note in notes if isinstance(note, Leased)]
    durable = [note for note in notes if isinstance(note, Durable)]
    served = _served(leased)
    ends = GroupEnds(streams)
    return [
        *_changed(leased),
        *_served_after_durable(leased, durable),
        *_broken_steps(served),
        *_in_two_steps(served),
        *_too_stale(leased),
        *_not_as_recorded(served, streams),
        *_lost([note for note in notes if isinstance(note, Stored)], streams),
        *ends.unjustified(),
    ]


def _served(leased: Iterable[Leased]) -> dict[tuple[str, int], dict[int, tuple[Row, ...]]]:
    """The rows of every (policy, step) by rank, as they were served first."""
    served: dict[tuple[str, int], dict[int, tuple[Row, ...]]] = defaultdict(dict)
    for note in leased:
        served[note.policy, note.step].setdefault(note.rank, note.rows)
    return served


def _changed(leased: Iterable[Leased]) -> Iterable[str]:
    first: dict[tuple[str, int, int], Leased] = {}
    for note in leased:
        before = first.setdefault((note.policy, note.step, note.rank), note)
        if before.rows != note.rows:
            yield (
                f"{note.policy}: step {note.step} gave rank {note.rank} other rows in attempt {note.attempt} than in"
                f" attempt {before.attempt}"
            )


def _served_after_durable(leased: Iterable[Leased], durable: Iterable[Durable]) -> Iterable[str]:
    """An attempt that comes after an acknowledged one never gets what that one acknowledged."""
    acknowledged: dict[str, list[Durable]] = defaultdict(list)
    for mark in durable:
        acknowledged[mark.policy].append(mark)
    for note in leased:
        for mark in acknowledged[note.policy]:
            if note.attempt > mark.attempt and note.step <= mark.step:
                yield f"{note.policy}: attempt {note.attempt} got step {note.step}, durable in attempt {mark.attempt}"


def _broken_steps(served: Mapping[tuple[str, int], Mapping[int, tuple[Row, ...]]]) -> Iterable[str]:
    last = {policy: max(step for other, step in served if other == policy) for policy, _ in served}
    for policy, newest in last.items():
        for step in range(newest):
            if len(served.get((policy, step), {})) != RANKS:
                yield f"{policy}: step {newest} was served, and step {step} not to every rank"
    for (policy, step), by_rank in served.items():
        if len(by_rank) == RANKS:
            yield from _broken_step(f"{policy}: step {step}", list(chain.from_iterable(by_rank.values())))


def _broken_step(where: str, rows: Sequence[Row]) -> Iterable[str]:
    places = Counter((row.group_id, row.group_index) for row in rows)
    if len(places) != len(rows):
        yield f"{where} has a sample on two ranks"
    if len(rows) != BATCH:
        yield f"{where} has {len(rows)} samples, not {BATCH}"
    for group_id, count in Counter(group_id for group_id, _ in places).items():
        if count != GROUP:
            yield f"{where} has {count} of the {GROUP} samples of {group_id}"


def _in_two_steps(served: Mapping[tuple[str, int], Mapping[int, tuple[Row, ...]]]) -> Iterable[str]:
    steps: dict[SampleKey, int] = {}
    for (policy, step), by_rank in served.items():
        for row in chain.from_iterable(by_rank.values()):
            before = steps.setdefault((policy, row.group_id, row.group_index), step)
            if before != step:
                yield f"{policy}: sample {row.group_index} of {row.group_id} is in steps {before} and {step}"


def _too_stale(leased: Iterable[Leased]) -> Iterable[str]:
    for note in leased:
        for row in note.rows:
            if note.step - row.oldest_version > STALENESS:
                yield f"{note.policy}: {row.trajectory_id} of version {row.oldest_version} trained in step {note.step}"


def _not_as_recorded(
    served: Mapping[tuple[str, int], Mapping[int, tuple[Row, ...]]], streams: Streams
) -> Iterable[str]:
    granted = {
        (record.policy, record.step): {(group_id, index) for group_id in record.groups for index in range(GROUP)}
        for record in streams.records
        if isinstance(record, StepGranted)
    }
    for (policy, step), by_rank in served.items():
        rows = {(row.group_id, row.group_index) for row in chain.from_iterable(by_rank.values())}
        recorded = granted.get((policy, step), set())
        if not rows <= recorded or (len(by_rank) == RANKS and rows != recorded):
            yield f"{policy}: the ranks got other samples in step {step} than the ledger has granted"


def _lost(stored: Iterable[Stored], streams: Streams) -> Iterable[str]:
    for note in stored:
        header = streams.headers[note.sequence - 1] if note.sequence <= len(streams.headers) else None
        if header is None or _sample_key(header) != (note.policy, note.group_id, note.group_index):
            yield f"{note.policy}: sample {note.group_index} of {note.group_id} was acknowledged and is not there"


def _sample_key(header: TrajectoryHeader) -> SampleKey:
    return header.policy, header.group_id, header.group_index


class GroupEnds:
    """What became of every group that was stored, in part or in whole."""

    def __init__(self, streams: Streams) -> None:
        self._samples: dict[tuple[str, str], dict[int, TrajectoryHeader]] = defaultdict(dict)
        for header in streams.headers:
            self._samples[header.policy, header.group_id].setdefault(header.group_index, header)
        self._marked: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for record in streams.records:
            match record:
                case StepGranted():
                    self._marked["granted"].update((record.policy, group_id) for group_id in record.groups)
                    self._marked["stale"].update((record.policy, group_id) for group_id in record.dropped)
                case GroupsDropped():
                    self._marked["stale"].update((record.policy, group_id) for group_id in record.dropped)
                case GroupsFiltered():
                    self._marked["filtered"].update((record.policy, group_id) for group_id in record.left_out)

    def counts(self) -> Counter[str]:
        return Counter(self._end(group) for group in self._samples)

    def unjustified(self) -> Iterable[str]:
        """Every group has one end at most, and the filters were right about it."""
        for group, samples in self._samples.items():
            ends = [end for end, groups in self._marked.items() if group in groups]
            if any(header.error is not None for header in samples.values()):
                ends.append("failed")
            if len(ends) > 1:
                yield f"{group[0]}: group {group[1]} is {' and '.join(ends)}"
            short = [header for header in samples.values() if header.trained_tokens < MIN_TOKENS]
            if ("filtered" in ends and len(short) != GROUP) or ("granted" in ends and short):
                yield f"{group[0]}: group {group[1]} with {len(short)} short samples is {ends[0]}"

    def _end(self, group: tuple[str, str]) -> str:
        for end, groups in self._marked.items():
            if group in groups:
                return end
        samples = self._samples[group]
        if any(header.error is not None for header in samples.values()):
            return "failed"
        return "waiting" if len(samples) == GROUP else "unfinished"
