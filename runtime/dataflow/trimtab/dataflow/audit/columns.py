"""What stages have said of a job's groups, as the streams have it: which columns count, and what became of each group.
It is worked out from the manifest and the streams alone, in another way than the ledger does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.api.stage import Stage
from trimtab.dataflow.audit.history import GroupHistory, deadlines, trained_on
from trimtab.dataflow.audit.streams import Streams
from trimtab.dataflow.ledger.records import StepGranted
from trimtab.fabric.wire.column import ColumnHeader, rows_digest

_RESULTS = {"Reward": "rewards", "TurnRewards": "turn_rewards", "Filter": "keep"}
_SPENT = 8


@dataclass(kw_only=True)
class StagedHistory:
    """One group whose rows are all there."""

    rows: tuple[str, ...]
    """Ids, by index and part."""
    taken: dict[str, tuple[int, ColumnHeader]] = field(default_factory=dict)
    """By stage, the column that counts and where it lies."""
    spent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By stage, columns that were not what was asked for."""
    beside: int = 0
    """Columns that do not count, whatever the reason."""
    failed_by: str | None = None
    left_out_by: str | None = None
    done_at: int | None = None
    """Where the column lies with which all were there."""

    @property
    def over(self) -> bool:
        return self.failed_by is not None or self.left_out_by is not None or self.done_at is not None

    def ready(self, stages: Sequence[Stage]) -> list[str]:
        """Stages that have to be asked."""
        names = {stage.name for stage in stages}
        waiting = [stage for stage in stages if stage.name not in self.taken]
        return [stage.name for stage in waiting if all(need in self.taken for need in stage.needs if need in names)]

    def rows_for(self, stage: Stage, stages: Sequence[Stage]) -> tuple[str, ...]:
        """Without those that filters behind the stage have left out."""
        by_name = {one.name: one for one in stages}
        behind: list[str] = [name for name in stage.needs if name in by_name]
        for name in behind:
            behind += [need for need in by_name[name].needs if need in by_name and need not in behind]
        gone = {row for name in behind if name in self.taken for row in self._left_out(by_name[name], stages)}
        return tuple(row for row in self.rows if row not in gone)

    def _left_out(self, stage: Stage, stages: Sequence[Stage]) -> set[str]:
        choices = self.taken[stage.name][1].keep
        if choices is None:
            return set()
        return {row for row, keep in zip(self.rows_for(stage, stages), choices, strict=True) if not keep}

    def kept(self, stages: Sequence[Stage]) -> tuple[str, ...]:
        gone = {row for stage in stages if stage.name in self.taken for row in self._left_out(stage, stages)}
        return tuple(row for row in self.rows if row not in gone)

    def add(self, sequence: int, header: ColumnHeader, stages: Sequence[Stage]) -> None:
        own = {stage.name: stage for stage in stages}
        stage = own.get(header.stage)
        if stage is None or self.over or header.stage in self.taken:
            self.beside += 1
            return
        if header.stage not in self.ready(stages) or not self._answers(header, stage, stages):
            self.beside += 1
            self.spent[header.stage] += 1
            if self.spent[header.stage] >= _SPENT:
                self.failed_by = header.stage
            return
        self.taken[header.stage] = sequence, header
        if header.error is not None:
            self.failed_by = header.stage
        elif header.keep is not None and not self.kept(stages):
            self.left_out_by = header.stage
        elif len(self.taken) == len(own):
            self.done_at = sequence

    def _answers(self, header: ColumnHeader, stage: Stage, stages: Sequence[Stage]) -> bool:
        rows = self.rows_for(stage, stages)
        if header.rows_digest != rows_digest(rows):
            return False
        given = {name for name in _RESULTS.values() if getattr(header, name) is not None}
        wanted = _RESULTS.get(stage.computes)
        if header.error is not None:
            return not given
        if given != ({wanted} if wanted is not None else set()):
            return False
        return wanted is None or len(getattr(header, wanted)) == len(rows)


Histories = Mapping[str, StagedHistory]


def stages_of(policy: str, stages: Sequence[Stage], *, learning: Iterable[str]) -> tuple[Stage, ...]:
    return tuple(stage for stage in stages if policy in (stage.rows or tuple(learning)))


def staged_histories(streams: Streams, stages: Sequence[Stage]) -> dict[str, StagedHistory]:
    """By group, those that some stage is for and whose rows can be trained."""
    if not stages:
        return {}
    groups = trained_on(streams.headers)
    learning = {group.policy for group in groups.values()}
    found: dict[str, StagedHistory] = {}
    for own in deadlines(streams.headers).values():
        for group_id in own:
            if stages_of(groups[group_id].policy, stages, learning=learning):
                found[group_id] = StagedHistory(rows=_ids(groups[group_id], streams))
    for sequence, header in streams.columns:
        history = found.get(header.group_id)
        if history is not None and header.policy == groups[header.group_id].policy:
            history.add(sequence, header, stages_of(header.policy, stages, learning=learning))
    return found


def _ids(group: GroupHistory, streams: Streams) -> tuple[str, ...]:
    rows = [
        (header.group_index, header.part, place) for own in group.episodes.values() for place, header in own.items()
    ]
    return tuple(streams.trajectory_ids[place] for _, _, place in sorted(rows))


def available(streams: Streams, histories: Histories) -> dict[str, dict[str, tuple[int, int]]]:
    """As `deadlines`, of groups that have all that they waited for, by where the last column for them lies."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for policy, own in deadlines(streams.headers).items():
        ends = {
            group_id: histories[group_id].done_at if group_id in histories else own[group_id][1] for group_id in own
        }
        ended = sorted((end, group_id) for group_id, end in ends.items() if end is not None)
        found[policy] = {group_id: (own[group_id][0], end) for end, group_id in ended}
    return found


def wrong_columns(streams: Streams, histories: Histories) -> Iterable[str]:
    """Groups that were trained without all that stages had to say of them, or although one had given them up."""
    for record in streams.records:
        if not isinstance(record, StepGranted):
            continue
        for group_id in record.groups:
            history = histories.get(group_id)
            if history is None or history.done_at is not None:
                continue
            where = f"{record.policy}: group {group_id} of step {record.step}"
            if history.failed_by is not None:
                yield f"{where} was given up by stage {history.failed_by}"
            elif history.left_out_by is not None:
                yield f"{where} was left out by stage {history.left_out_by}"
            else:
                yield f"{where} was trained with the columns of {sorted(history.taken)} alone"


def unasked(streams: Streams, histories: Histories, stages: Sequence[Stage]) -> list[str]:
    """What no stage will ever be asked, because it is neither answered nor on the queue. While a job runs it may be
    about to be asked; in one that is at rest it is lost.
    """
    groups = trained_on(streams.headers)
    learning = {group.policy for group in groups.values()}
    return [
        f"{groups[group_id].policy}: group {group_id} is lost: stage {name} is not asked about it"
        for group_id, history in histories.items()
        if not history.over
        for name in history.ready(stages_of(groups[group_id].policy, stages, learning=learning))
        if f"{group_id}.{name}" not in streams.asked
    ]
