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
from trimtab.dataflow.ledger.records import GroupsDropped, GroupsFiltered, LedgerAnchoredAnew, StepGranted
from trimtab.fabric.wire.header import TrajectoryHeader

RowKey = tuple[str, int, int]
"""Group, index and part: what a row is, whichever run made it and under whatever id."""


def faults(notes: Sequence[Note], streams: Streams) -> list[str]:
    """What is wrong, one sentence each. `streams` must be whole: sequence n is the n-th header."""
    leased = [note for note in notes if isinstance(note, Leased)]
    durable = [note for note in notes if isinstance(note, Durable)]
    served = _served(leased)
    episodes = Episodes(streams.headers)
    ends = GroupEnds(streams, episodes)
    return [
        *_changed(leased),
        *_served_after_durable(leased, durable),
        *_broken_steps(served, episodes),
        *_in_two_steps(served),
        *_too_stale(leased),
        *_not_as_recorded(served, streams, episodes),
        *_lost([note for note in notes if isinstance(note, Stored)], streams),
        *ends.unjustified(),
        *_anchored(streams),
    ]


def _anchored(streams: Streams) -> Iterable[str]:
    """A kill loses nothing that was acknowledged, of which the ledger would have to say so."""
    for record in streams.records:
        if isinstance(record, LedgerAnchoredAnew):
            yield f"{record.policy}: anchored anew at step {record.step}, {record.given_up} groups given up"


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


class Episodes:
    """Which rows of the stream are the episodes, told from their headers alone and in another way than the dataflow
    does: of the places at which a run of an episode was whole, the first.
    """

    def __init__(self, headers: Sequence[TrajectoryHeader]) -> None:
        runs: dict[tuple[str, int, str], dict[int, int]] = defaultdict(dict)
        self._counts: dict[tuple[str, int, str], int] = {}
        for place, header in enumerate(headers):
            key = header.group_id, header.group_index, header.run
            runs[key].setdefault(header.part, place)
            self._counts.setdefault(key, header.parts)
        whole = sorted(
            (max(places.values()), key)
            for key, places in runs.items()
            if len(places) >= self._counts[key] or any(headers[place].error for place in places.values())
        )
        self.run: dict[tuple[str, int], str] = {}
        """By group and index."""
        self.sequences: dict[str, dict[RowKey, int]] = defaultdict(dict)
        """By group, its rows and where they lie."""
        for _, (group_id, index, run) in whole:
            if self.run.setdefault((group_id, index), run) == run and self._counts[group_id, index, run]:
                for part, place in runs[group_id, index, run].items():
                    self.sequences[group_id][group_id, index, part] = place + 1

    def closed(self, group_id: str) -> int:
        return sum(1 for group, _ in self.run if group == group_id)


def _broken_steps(served: Mapping[tuple[str, int], Mapping[int, tuple[Row, ...]]], episodes: Episodes) -> Iterable[str]:
    last = {policy: max(step for other, step in served if other == policy) for policy, _ in served}
    for policy, newest in last.items():
        for step in range(newest):
            if len(served.get((policy, step), {})) != RANKS:
                yield f"{policy}: step {newest} was served, and step {step} not to every rank"
    for (policy, step), by_rank in served.items():
        if len(by_rank) == RANKS:
            yield from _broken_step(f"{policy}: step {step}", list(chain.from_iterable(by_rank.values())), episodes)


def _broken_step(where: str, rows: Sequence[Row], episodes: Episodes) -> Iterable[str]:
    places = Counter(_row_key(row) for row in rows)
    if len(places) != len(rows):
        yield f"{where} has a row on two ranks"
    groups = {row.group_id for row in rows}
    if len(groups) != BATCH // GROUP:
        yield f"{where} has {len(groups)} groups, not {BATCH // GROUP}"
    for row in rows:
        if episodes.sequences[row.group_id].get(_row_key(row)) != row.sequence:
            yield f"{where} has row {row.trajectory_id} of run {row.run}, which is not the episode"
    for group_id in groups:
        own, all_rows = {key for key in places if key[0] == group_id}, episodes.sequences[group_id].keys()
        if own != all_rows:
            yield f"{where} has {len(own)} of the {len(all_rows)} rows of {group_id}"


def _row_key(row: Row) -> RowKey:
    return row.group_id, row.group_index, row.part


def _in_two_steps(served: Mapping[tuple[str, int], Mapping[int, tuple[Row, ...]]]) -> Iterable[str]:
    steps: dict[tuple[str, RowKey], int] = {}
    for (policy, step), by_rank in served.items():
        for row in chain.from_iterable(by_rank.values()):
            before = steps.setdefault((policy, _row_key(row)), step)
            if before != step:
                yield f"{policy}: row {row.trajectory_id} is in steps {before} and {step}"


def _too_stale(leased: Iterable[Leased]) -> Iterable[str]:
    for note in leased:
        for row in note.rows:
            if note.step - row.oldest_version > STALENESS:
                yield f"{note.policy}: {row.trajectory_id} of version {row.oldest_version} trained in step {note.step}"


def _not_as_recorded(
    served: Mapping[tuple[str, int], Mapping[int, tuple[Row, ...]]], streams: Streams, episodes: Episodes
) -> Iterable[str]:
    granted = {
        (record.policy, record.step): {key for group_id in record.groups for key in episodes.sequences[group_id]}
        for record in streams.records
        if isinstance(record, StepGranted)
    }
    for (policy, step), by_rank in served.items():
        rows = {_row_key(row) for row in chain.from_iterable(by_rank.values())}
        recorded = granted.get((policy, step), set())
        if not rows <= recorded or (len(by_rank) == RANKS and rows != recorded):
            yield f"{policy}: the ranks got other rows in step {step} than the ledger has granted"


def _lost(stored: Iterable[Stored], streams: Streams) -> Iterable[str]:
    for note in stored:
        header = streams.headers[note.sequence - 1] if note.sequence <= len(streams.headers) else None
        noted = note.policy, note.group_id, note.group_index, note.part
        if header is None or (header.policy, header.group_id, header.group_index, header.part) != noted:
            where = f"{note.policy}: row {note.part} of episode {note.group_index} of {note.group_id}"
            yield f"{where} was acknowledged and is not there"


class GroupEnds:
    """What became of every group that was stored, in part or in whole."""

    def __init__(self, streams: Streams, episodes: Episodes) -> None:
        self._episodes = episodes
        self._rows: dict[tuple[str, str], list[TrajectoryHeader]] = {
            (header.policy, header.group_id): [] for header in streams.headers
        }
        for (policy, group_id), rows in self._rows.items():
            rows += [streams.headers[sequence - 1] for sequence in episodes.sequences[group_id].values()]
            assert all(row.policy == policy for row in rows)
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
        return Counter(self._end(group) for group in self._rows)

    def unjustified(self) -> Iterable[str]:
        """Every group has one end at most, and the filters were right about it."""
        for group, rows in self._rows.items():
            ends = [end for end, groups in self._marked.items() if group in groups]
            if any(header.error is not None for header in rows):
                ends.append("failed")
            if not rows and ends:
                ends.append("empty")
            if len(ends) > 1:
                yield f"{group[0]}: group {group[1]} is {' and '.join(ends)}"
            tokens: Counter[int] = Counter()
            for row in rows:
                tokens[row.group_index] += row.trained_tokens
            short = [index for index, count in tokens.items() if count < MIN_TOKENS]
            if ("filtered" in ends and len(short) != len(tokens)) or ("granted" in ends and short):
                yield f"{group[0]}: group {group[1]} with {len(short)} short episodes is {ends[0]}"

    def _end(self, group: tuple[str, str]) -> str:
        for end, groups in self._marked.items():
            if group in groups:
                return end
        if any(header.error is not None for header in self._rows[group]):
            return "failed"
        if self._episodes.closed(group[1]) < GROUP:
            return "unfinished"
        return "waiting" if self._rows[group] else "empty"
