"""Episodes of several turns, whole or cut into rows that have earlier turns as echoes, as a lease hands them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.api.policy import Policy
from trimtab.fabric.wire.column import Column
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.lease import BatchLease, Episode, Group, SampleReference, StepTotals
from trimtab.fabric.wire.spans import Producer, Span, merged, model_span
from trimtab.fabric.wire.stage import ColumnReference
from trimtab.fabric.wire.trajectory import Finish, Scored, Trajectory, TurnReward
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.batch import Row
from trimtab.trainer.leased_columns import LeasedColumns
from trimtab.trainer.leased_rows import LeasedRows
from trimtab.trainer.recipes import policy_recipe

GROUPS = 3
GROUP_SIZE = 4
_VOCABULARY = 15
_TURNS = 5
_COLUMN_AT = 7
STAGE = "logprobs"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What was asked or answered before, and what the policy said."""

    heard: int
    said: int
    reward: float


@dataclass(frozen=True, kw_only=True)
class Told:
    """An episode as it went."""

    group: int
    index: int
    turns: tuple[Turn, ...]
    reward: float
    truncated: bool
    token_ids: np.ndarray[tuple[int], np.dtype[np.int32]]
    logprobs: np.ndarray[tuple[int], np.dtype[np.float32]]
    """Of what was said, one after the other."""
    scored: np.ndarray[tuple[int], np.dtype[np.float32]] | None = None
    """What a stage says of it: the log-probabilities under another model."""

    def rows(self, ends: Sequence[int], *, by_turn: bool) -> list[Trajectory]:
        """A row for each of `ends`, counts of turns in ascending order up to all: it trains the turns after those of
        the row before, which it has as echoes.
        """
        made = []
        for part, (first, end) in enumerate(zip((0, *ends[:-1]), ends, strict=True)):
            spans = [Span(1, Producer.PROMPT)]
            for number, turn in enumerate(self.turns[:end]):
                spans.append(Span(turn.heard, Producer.ENVIRONMENT if number else Producer.PROMPT))
                spans.append(Span(turn.said, Producer.ECHO) if number < first else model_span(turn.said, version=0))
            before, until = (sum(turn.said for turn in self.turns[:count]) for count in (first, end))
            trained = [(number, self.turns[number]) for number in range(first, end)]
            made.append(
                Trajectory(
                    trajectory_id=f"t{self.group}.solver.{self.index}.{part}",
                    job="j",
                    policy="solver",
                    role="solver",
                    task_id=f"t{self.group}",
                    prompt_id=f"p{self.group}",
                    group_id=f"t{self.group}.solver",
                    group_index=self.index,
                    group_size=GROUP_SIZE,
                    part=part,
                    parts=len(ends),
                    outcome=Scored(
                        reward=self.reward,
                        finish=Finish.LENGTH if self.truncated and end == len(self.turns) else Finish.STOP,
                    ),
                    token_ids=self.token_ids[: sum(span.length for span in spans)],
                    logprobs=self.logprobs[before:until],
                    spans=merged(spans),
                    turns=len(trained),
                    turn_rewards=tuple(TurnReward(number, turn.said, turn.reward) for number, turn in trained)
                    if by_turn
                    else (),
                    worker="w",
                    pool="p",
                    engine="builtin",
                    started_at=1.0,
                    finished_at=2.0,
                )
            )
        return made


def told_step(seed: int) -> list[list[Told]]:
    """The groups of a step. One episode in five has no room for its last turn."""
    chance = np.random.default_rng(seed)
    groups = []
    for group in range(GROUPS):
        episodes = []
        for index in range(GROUP_SIZE):
            turns = tuple(
                Turn(
                    heard=int(chance.integers(1, 4)),
                    said=int(chance.integers(1, 5)),
                    reward=float(chance.normal()),
                )
                for _ in range(int(chance.integers(1, _TURNS + 1)))
            )
            tokens, said = 1 + sum(turn.heard + turn.said for turn in turns), sum(turn.said for turn in turns)
            episodes.append(
                Told(
                    group=group,
                    index=index,
                    turns=turns,
                    reward=float(chance.normal()),
                    truncated=bool(chance.random() < 0.2),
                    token_ids=chance.integers(0, _VOCABULARY, tokens).astype(np.int32),
                    logprobs=-chance.exponential(2.5, said).astype(np.float32),
                    scored=-np.random.default_rng([seed, group, index]).exponential(2.5, said).astype(np.float32),
                )
            )
        groups.append(episodes)
    return groups


def cut(told: Told, chance: np.random.Generator) -> list[int]:
    """Where an episode of many turns is cut into rows, at random."""
    count = len(told.turns)
    inside = [end for end in range(1, count) if chance.random() < 0.6]
    return [*inside, count]


@dataclass(frozen=True, kw_only=True)
class CutStep:
    """A step of leased rows, portion by portion."""

    portions: tuple[tuple[Row, ...], ...]
    totals: StepTotals


def leased_step(
    of: Policy, *, step: int, cut_seed: int | None, portions: int = 1, rank: int = 0, world_size: int = 1
) -> CutStep:
    """Rank's rows. Without a seed episodes are whole. Portions have whole groups; rows are dealt one by one."""
    by_turn = of.algorithm.credit.type == "Turn"
    chance = np.random.default_rng(cut_seed)
    taken: list[list[Row]] = [[] for _ in range(portions)]
    samples = tokens = trained = dealt = 0
    rule = AdvantageRule.of(of, policy_recipe(of, folder=None))
    for number, told in enumerate(told_step(step)):
        episodes = [
            one.rows([len(one.turns)] if cut_seed is None else cut(one, chance), by_turn=by_turn) for one in told
        ]
        lease, payloads = group_lease(told, episodes, first_sequence=1 + samples)
        leased = LeasedRows(lease=lease, advantages=rule, columns=scored_columns(told, episodes))
        for sample in lease.samples:
            row = leased.row(sample, payloads[sample.sequence])
            if dealt % world_size == rank:
                taken[number % portions].append(row)
            dealt += 1
        samples += len(lease.samples)
        tokens += sum(sample.prompt_tokens + sample.response_tokens for sample in lease.samples)
        trained += sum(sample.trained_tokens for sample in lease.samples)
    totals = StepTotals(
        samples=samples, groups=GROUPS, episodes=GROUPS * GROUP_SIZE, tokens=tokens, trained_tokens=trained
    )
    return CutStep(portions=tuple(tuple(rows) for rows in taken), totals=totals)


def scored_columns(told: Sequence[Told], episodes: Sequence[Sequence[Trajectory]]) -> LeasedColumns | None:
    """What the stage says of the rows of one group, where it was asked."""
    scored = [one.scored for one in told if one.scored is not None]
    if not scored:
        return None
    rows = [row for of_episode in episodes for row in of_episode]
    column = Column(
        job="j",
        stage=STAGE,
        policy="solver",
        group_id=rows[0].group_id,
        run="a",
        trajectory_ids=tuple(row.trajectory_id for row in rows),
        lengths=tuple(row.trained_tokens for row in rows),
        values=np.concatenate(scored),
    )
    return LeasedColumns(payloads={_COLUMN_AT: encode(column)}, computed_with={_COLUMN_AT: 0})


def group_lease(
    told: Sequence[Told], episodes: Sequence[Sequence[Trajectory]], *, first_sequence: int
) -> tuple[BatchLease, dict[int, bytes]]:
    """Of one group, as the dataflow makes it from the headers of its rows."""
    samples: list[SampleReference] = []
    payloads: dict[int, bytes] = {}
    for one, rows in zip(told, episodes, strict=True):
        for row in rows:
            sequence = first_sequence + len(samples)
            payloads[sequence] = encode(row)
            samples.append(
                SampleReference(
                    sequence=sequence,
                    trajectory_id=row.trajectory_id,
                    group=0,
                    episode=one.index,
                    group_index=one.index,
                    part=row.part,
                    reward=one.reward,
                    prompt_tokens=row.prompt_tokens,
                    response_tokens=row.response_tokens,
                    trained_tokens=row.trained_tokens,
                    oldest_version=0,
                    newest_version=0,
                )
            )
    group = Group(
        group_id=episodes[0][0].group_id,
        prompt_id=episodes[0][0].prompt_id,
        episodes=tuple(
            Episode(
                reward=one.reward,
                rows=len(rows),
                trained_tokens=sum(row.trained_tokens for row in rows),
                truncated=one.truncated,
                turns=tuple(turn for row in rows for turn in row.turn_rewards),
            )
            for one, rows in zip(told, episodes, strict=True)
        ),
        columns=(ColumnReference(stage=STAGE, sequence=_COLUMN_AT),) if told[0].scored is not None else (),
    )
    lease = BatchLease(
        lease_id="l",
        job="j",
        policy="solver",
        step=0,
        rank=0,
        world_size=1,
        stream="s",
        columns_stream="c" if told[0].scored is not None else None,
        groups=(group,),
        samples=tuple(samples),
        issued_at=1.0,
        expires_at=2.0,
    )
    return lease, payloads
