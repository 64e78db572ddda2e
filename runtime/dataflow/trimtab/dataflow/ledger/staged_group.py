"""A complete group on its way through the stages: what each has said of its rows, and what is left of it in the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from trimtab.dataflow.ledger.groups import Group, Sample
from trimtab.dataflow.ledger.stage_graph import StageGraph, is_joined
from trimtab.fabric.wire.column import ColumnHeader, rows_digest
from trimtab.fabric.wire.stage import ColumnReference

_SAYING = frozenset({"Reward", "TurnRewards", "Filter"})
MAX_REFUSED = 8
"""Columns about one group and stage that say something else than was asked for, before the group is given up."""


class ColumnArrival(StrEnum):
    """What came of a column."""

    NEW = "new"
    DONE = "done"
    """Its group has all that it was waiting for."""
    FAILED = "failed"
    """The stage was given up, and so is the group."""
    LEFT_OUT = "left-out"
    """No row of the group is left."""
    DUPLICATE = "duplicate"
    EARLY = "early"
    """Its group is not complete yet as far as is known here: it is looked at again when it is."""
    REFUSED = "refused"
    """No task of a stage can have led to it."""


class Said(msgspec.Struct, frozen=True):
    """What a stage has said of a group."""

    sequence: int
    """Where its column lies."""
    header: ColumnHeader
    rows: tuple[str, ...]
    """Ids of those that it was given, in their order."""


class StagedGroup:
    """Changed by the books of stages alone."""

    __slots__ = ("_graph", "first_column", "group", "refused", "said")

    def __init__(self, group: Group, graph: StageGraph) -> None:
        self.group = group
        """As it was sampled."""
        self._graph = graph
        self.said: dict[str, Said] = {}
        """By stage."""
        self.refused: dict[str, int] = {}
        """By stage, how many columns were refused: what was asked is asked again so often."""
        self.first_column: int | None = None
        """Where the first column about it lies, whatever came of it."""

    def add(self, sequence: int, header: ColumnHeader) -> ColumnArrival:
        """The first column of a stage counts, whichever worker it comes from."""
        if self.first_column is None:
            self.first_column = sequence
        stage = header.stage
        if stage in self.said:
            return ColumnArrival.DUPLICATE
        rows = self._rows_of(header)
        if rows is None:
            self.refused[stage] = self.refused.get(stage, 0) + 1
            return ColumnArrival.FAILED if self.refused[stage] >= MAX_REFUSED else ColumnArrival.REFUSED
        self.said[stage] = Said(sequence, header, rows)
        if header.error is not None:
            return ColumnArrival.FAILED
        if header.keep is not None and not self.rows_after(self.said):
            return ColumnArrival.LEFT_OUT
        done = len(self.said) == len(self._graph.of(self.group.policy))
        return ColumnArrival.DONE if done else ColumnArrival.NEW

    def _rows_of(self, header: ColumnHeader) -> tuple[str, ...] | None:
        """The rows that it speaks of; None unless it says what its stage computes, of those that it was given."""
        policy, stage = self.group.policy, self._graph.stages[header.stage]
        if any(name not in self.said for name in self._graph.needs(policy, stage.name)):
            return None
        given = self.rows_for(stage.name)
        ids = tuple(row.trajectory_id for row in given)
        if header.rows_digest != rows_digest(ids):
            return None
        if header.error is not None:
            return ids
        said: dict[str, Sequence[object] | None] = {
            "Reward": header.rewards,
            "TurnRewards": header.turn_rewards,
            "Filter": header.keep,
        }
        values = said.pop(stage.computes, None)
        if any(other is not None for other in said.values()):
            return None
        if stage.computes in _SAYING and (values is None or len(values) != len(ids)):
            return None
        turns = header.turn_rewards
        if turns is not None and [len(own) for own in turns] != [len(row.turn_rewards) for row in given]:
            return None
        return ids

    def ready(self) -> tuple[str, ...]:
        """Stages that are not done, and wait for nothing."""
        return tuple(stage.name for stage in self._graph.ready(self.group.policy, self.said))

    def rows_for(self, stage: str) -> tuple[Sample, ...]:
        """What a stage is given: the rows as the stages that it needs have left them."""
        return self.rows_after(self._graph.behind(self.group.policy, stage))

    def rows_after(self, stages: Iterable[str]) -> tuple[Sample, ...]:
        """The rows after what these stages have said, in the order of the manifest, whichever was first to say it."""
        counted = frozenset(stages)
        rows = {sample.trajectory_id: sample for sample in self.group.samples}
        for stage in self._graph.of(self.group.policy):
            if stage.name in counted and stage.name in self.said:
                _apply(rows, self.said[stage.name])
        return tuple(rows.values())

    def references(self, stage: str) -> tuple[ColumnReference, ...]:
        """Columns of the stages that one needs."""
        names = self._graph.needs(self.group.policy, stage)
        return tuple(ColumnReference(stage=name, sequence=self.said[name].sequence) for name in names)

    def finished(self) -> Group:
        """The group as it is trained on, with what stages have said of it until now."""
        stages = [stage for stage in self._graph.of(self.group.policy) if stage.name in self.said]
        samples = self.rows_after(self.said)
        return msgspec.structs.replace(
            self.group,
            samples=samples,
            episodes=len({sample.index for sample in samples}),
            columns=tuple(
                ColumnReference(stage=stage.name, sequence=self.said[stage.name].sequence)
                for stage in stages
                if is_joined(stage)
            ),
            first_column=self.first_column,
        )


def _apply(rows: dict[str, Sample], said: Said) -> None:
    """What a stage has said. Rows that another has left out since stay out."""
    replace, header = msgspec.structs.replace, said.header
    for place, row in enumerate(said.rows):
        own = rows.get(row)
        if own is None:
            continue
        if header.keep is not None and not header.keep[place]:
            del rows[row]
        if header.rewards is not None:
            rows[row] = replace(own, reward=header.rewards[place])
        if header.turn_rewards is not None:
            rewards = header.turn_rewards[place]
            turns = tuple(replace(turn, reward=reward) for turn, reward in zip(own.turn_rewards, rewards, strict=True))
            rows[row] = replace(own, turn_rewards=turns)
