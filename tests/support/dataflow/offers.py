"""Offers for tests of selections: any state of the books, also those that are hard to come to, and jobs in motion."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.support.dataflow.books import GROUP, Feed, ledger
from tests.support.dataflow.finished_groups import finished
from trimtab.dataflow.ledger.records import StepGranted, StepTrained
from trimtab.dataflow.outcomes import GroupOutcome
from trimtab.dataflow.selection.contract import Selection, Used
from trimtab.dataflow.service import begun

POLICIES = {"solver": 1, "judge": 1}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An offer by what is in it."""

    batch: int
    filled: int
    places: int
    step: int = 5
    policy: str = "solver"
    fresh_before: int = 0
    groups: dict[str, Sequence[str]] = field(default_factory=dict)
    """By stream, those that wait."""
    pool: Sequence[Used] = ()

    @property
    def chance(self) -> random.Random:
        return random.Random(self.step)

    def waiting(self, stream: str) -> int:
        return len(self.groups[stream])

    def earliest(self, stream: str, count: int) -> Sequence[str]:
        return self.groups[stream][:count]

    def used(self) -> Sequence[Used]:
        return self.pool

    def outcome(self, group_id: str) -> GroupOutcome:
        return finished(group_id, (0.0, 1.0))


def used(group_id: str, *, uses: int = 1, last_step: int = 4, age: int = 1, episodes: int = GROUP) -> Used:
    return Used(group_id=group_id, stream="solver", uses=uses, last_step=last_step, age=age, episodes=episodes)


@st.composite
def offers(draw: st.DrawFn) -> Shown:
    """A step of two streams, some of it filled, some groups waiting, some in the pool."""
    batch = draw(st.integers(1, 12))
    filled = draw(st.integers(0, batch - 1))
    pool = [
        used(
            f"u{number}",
            uses=draw(st.integers(1, 4)),
            last_step=draw(st.integers(3, 5)),
            age=draw(st.integers(0, 6)),
        )
        for number in range(draw(st.integers(0, 12)))
    ]
    return Shown(
        batch=batch,
        filled=filled,
        places=draw(st.integers(1, batch - filled)),
        fresh_before=draw(st.integers(0, 5000)),
        groups={stream: [f"{stream}{n}" for n in range(draw(st.integers(0, 12)))] for stream in POLICIES},
        pool=pool,
    )


def books(selection: Selection, *, places: int, policies: dict[str, int] | None = None, max_staleness: int = 2) -> Feed:
    """Empty books whose routes are those of the selection."""
    made = ledger(
        policies=policies or POLICIES, selection=selection, batch_size=places * GROUP, max_staleness=max_staleness
    )
    made.apply(begun(selection, {}, made))
    return Feed(made)


def supply(feed: Feed, count: int, *, streams: Sequence[str] = ("solver", "judge"), version: int | None = None) -> None:
    """So many new tasks, with the groups of these streams complete, sampled with the newest weights unless told."""
    first = feed.ledger.issued
    feed.issue(count)
    for task in range(first, first + count):
        for stream in streams:
            newest = feed.ledger.trainers[stream].trained_steps
            feed.complete(task, policy=stream, version=newest if version is None else version)


def grant(feed: Feed, policy: str = "solver", *, portions: int = 1) -> StepGranted:
    """The next step or portion, which must be there."""
    granted = feed.ledger.propose(policy, now=1.0, portions=portions)
    assert isinstance(granted, StepGranted), f"{policy} gets {granted}"
    feed.ledger.apply(granted)
    return granted


def train(feed: Feed, policy: str = "solver") -> StepGranted:
    """One step, and the trainer says that it is in its weights."""
    granted = grant(feed, policy)
    feed.ledger.apply(StepTrained(policy=policy, step=granted.step))
    return granted


def stream_of(group_id: str) -> str:
    return group_id.partition(".")[2]
