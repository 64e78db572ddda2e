"""Dynamic sampling, replay and GRESO on the same books: each does its part, and what they save adds up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.support.dataflow.books import Feed, header
from trimtab.api.data import Filter as FilterSettings
from trimtab.api.data import Greso as GresoSettings
from trimtab.api.data import Replay as ReplaySettings
from trimtab.dataflow.curators.contract import Curator, PassThrough
from trimtab.dataflow.curators.greso import Greso
from trimtab.dataflow.filters import make_filter
from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import GroupsFiltered, StepGranted, StepTrained, TasksIssued
from trimtab.dataflow.selection.contract import Selection
from trimtab.dataflow.selection.fresh import Fresh
from trimtab.dataflow.selection.replay import Replay

GROUP, PLACES, STEPS, PROMPTS = 8, 8, 120, 60
FRESH = Fresh({"solver": {"solver": 1.0}}, seed=0)
REPLAY = Replay(ReplaySettings(ratio=0.5, max_uses=4, max_age=8), FRESH)
ZERO_ADVANTAGE = make_filter(FilterSettings(zero_advantage="Drop"), load=lambda plugin: None)


@dataclass
class Ran:
    rolled_out: int = 0
    """Groups."""
    fresh: int = 0
    replayed: int = 0
    without_variance: int = 0
    """Of those that were trained on."""


def run(curator: Curator, selection: Selection) -> Ran:
    """A third of the prompts is solved, a third is out of reach."""
    rng = np.random.default_rng(5)
    books = Ledger(
        {"solver": 1},
        selection=selection,
        group_size=GROUP,
        batch_sizes={"solver": PLACES * GROUP},
        max_staleness=1,
        window_steps=3,
        has_filters=True,
        witness=curator,
    )
    feed = Feed(books)
    ran, position = Ran(), 0
    rewards: dict[str, tuple[float, ...]] = {}
    while feed.ledger.trainers["solver"].next_step < STEPS:
        wanted = feed.ledger.capacity_tasks(curator.groups_needed)
        admitted: list[int] = []
        while len(admitted) < wanted:
            if curator.admits(f"train-{position % PROMPTS}", {}, draw=rng.random()):
                admitted.append(position % PROMPTS)
            position += 1
        first = feed.ledger.issued
        feed.ledger.apply(TasksIssued(first=first, count=len(admitted)))
        for task, prompt in enumerate(admitted, start=first):
            chance = (0.0, 1.0, 0.5)[prompt % 3]
            drawn = tuple(float(rng.random() < chance) for _ in range(GROUP))
            rewards[f"t{task}.solver"] = drawn
            version = feed.ledger.trainers["solver"].trained_steps
            for index, reward in enumerate(drawn):
                one = header(task, index, reward=reward, version=version, prompt=f"train-{prompt}", group_size=GROUP)
                arrival = feed.arrive(one)
            assert arrival is Arrival.COMPLETED
            ran.rolled_out += 1
        judge(feed)
        granted = feed.ledger.propose("solver", now=1.0)
        if granted is None:
            continue
        feed.ledger.apply(granted)
        if isinstance(granted, StepGranted):
            feed.ledger.apply(StepTrained(policy="solver", step=granted.step))
            ran.fresh += len(granted.groups)
            ran.replayed += len(granted.replayed)
            ran.without_variance += sum(len(set(rewards[one])) == 1 for one in (*granted.groups, *granted.replayed))
    return ran


def judge(feed: Feed) -> None:
    verdicts = {
        group_id: bool(ZERO_ADVANTAGE.kept(group.outcome()))
        for group_id, group in feed.ledger.streams["solver"].unfiltered.items()
    }
    if verdicts:
        kept = tuple(group_id for group_id, keeps in verdicts.items() if keeps)
        left_out = tuple(group_id for group_id, keeps in verdicts.items() if not keeps)
        feed.ledger.apply(GroupsFiltered(policy="solver", kept=kept, left_out=left_out))


@pytest.mark.slow
def test_each_saves_what_it_saves_alone_and_no_batch_has_a_group_that_teaches_nothing() -> None:
    sampled = run(PassThrough(), FRESH)
    replayed = run(PassThrough(), REPLAY)
    curated = run(Greso(GresoSettings()), FRESH)
    together = run(Greso(GresoSettings()), REPLAY)
    for ran in (sampled, replayed, curated, together):
        assert ran.without_variance == 0
        assert ran.fresh + ran.replayed == STEPS * PLACES
    assert replayed.replayed == pytest.approx(STEPS * PLACES / 2, abs=PLACES)
    assert together.replayed == replayed.replayed
    assert together.rolled_out < 0.75 * min(replayed.rolled_out, curated.rolled_out)
    assert together.rolled_out < 0.45 * sampled.rolled_out
