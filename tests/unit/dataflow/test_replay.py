"""Replay: how much of each batch, of which groups, how often, how old; and what it saves."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest

from tests.support.dataflow.books import GROUP, Feed, header, ledger
from tests.support.dataflow.offers import books, supply, train
from trimtab.api.data import Replay as ReplaySettings
from trimtab.dataflow.ledger.records import GroupsDropped, GroupsFiltered, StepDurable, StepGranted
from trimtab.dataflow.ledger.snapshot import take_snapshot
from trimtab.dataflow.selection.fresh import Fresh
from trimtab.dataflow.selection.replay import Replay

SOLVER = {"solver": 1}
FRESH = Fresh({"solver": {"solver": 1.0}}, seed=0)


def replaying(settings: ReplaySettings, *, places: int, max_staleness: int = 8) -> Feed:
    return books(Replay(settings, FRESH), places=places, policies=SOLVER, max_staleness=max_staleness)


def steps(feed: Feed, count: int, *, places: int) -> list[StepGranted]:
    """So many steps, with as many groups at hand as a step without replay would take."""
    taken = []
    for _ in range(count):
        supply(feed, places, streams=["solver"])
        taken.append(train(feed))
    return taken


def pool(feed: Feed) -> list[str]:
    return [used.group.group_id for used in feed.ledger.trainers["solver"].pool]


def waiting(feed: Feed) -> list[str]:
    return [group.group_id for group in feed.ledger.trainers["solver"].buffers["solver"]]


def empty_buffer(feed: Feed) -> None:
    step = feed.ledger.trainers["solver"].next_step
    feed.ledger.apply(GroupsDropped(policy="solver", step=step, dropped=tuple(waiting(feed))))


def uses(granted: Sequence[StepGranted]) -> Counter[str]:
    return Counter(group_id for step in granted for group_id in (*step.groups, *step.replayed))


@pytest.mark.parametrize(("ratio", "share"), [(0.25, 1), (0.5, 2), (0.7, 3), (0.1, 0)])
def test_a_share_of_each_batch_is_replayed_once_there_is_something(ratio: float, share: int) -> None:
    feed = replaying(ReplaySettings(ratio=ratio, max_uses=100, max_age=100), places=4)
    first, *later = steps(feed, 12, places=4)
    assert (len(first.groups), first.replayed) == (4, ())
    assert [(len(step.groups), len(step.replayed)) for step in later] == [(4 - share, share)] * 11


def test_a_pool_with_less_than_the_share_gives_all_it_has_and_the_rest_is_fresh() -> None:
    """Three of the first four are replayed and thereby used up; the fourth and one more are left for the third step."""
    feed = replaying(ReplaySettings(ratio=0.75, max_uses=2, max_age=100), places=4)
    _, second, third = steps(feed, 3, places=4)
    assert (len(second.groups), len(second.replayed)) == (1, 3)
    assert (len(third.groups), len(third.replayed)) == (2, 2)


@pytest.mark.parametrize("portions", [2, 3, 4, 8])
@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.75])
def test_the_portions_of_a_step_add_up_to_the_share_and_hold_every_group_once(ratio: float, portions: int) -> None:
    """Fresh groups come one by one, so that each portion is taken as soon as it exists."""
    places = 8
    feed = replaying(ReplaySettings(ratio=ratio, max_uses=100, max_age=100), places=places)
    steps(feed, 3, places=places)
    empty_buffer(feed)
    taken: list[StepGranted] = []
    while not taken or not taken[-1].last:
        while (granted := feed.ledger.propose("solver", now=1.0, portions=portions)) is None:
            supply(feed, 1, streams=["solver"])
        assert isinstance(granted, StepGranted)
        feed.ledger.apply(granted)
        taken.append(granted)
    assert len(taken) > 1
    assert sum(len(portion.replayed) for portion in taken) == round(ratio * places)
    assert set(uses(taken).values()) == {1}
    assert uses(taken).total() == places


@pytest.mark.parametrize("max_uses", [2, 3, 5])
def test_no_group_is_used_more_often_than_allowed_and_none_twice_in_a_step(max_uses: int) -> None:
    feed = replaying(ReplaySettings(ratio=0.9, max_uses=max_uses, max_age=1000), places=4)
    taken = steps(feed, 40, places=4)
    assert max(uses(taken).values()) == max_uses
    assert all(max(uses([step]).values()) == 1 for step in taken)
    assert all(used.uses < max_uses for used in feed.ledger.trainers["solver"].pool), "used up means gone at once"


def test_age_is_that_of_the_oldest_trained_token_of_any_sample() -> None:
    """Two groups at step 10, one of them with a sample of version 8. All others are too old for replay from the start,
    so these two are replayed as long as they are young enough.
    """
    feed = replaying(ReplaySettings(ratio=0.5, max_uses=100, max_age=4), places=4)
    for step in range(10):
        supply(feed, 4, streams=["solver"], version=max(0, step - 6))
        train(feed)
    empty_buffer(feed)
    first = feed.ledger.issued
    feed.issue(2)
    feed.arrive(header(first, 0, version=10))
    feed.arrive(header(first, 1, version=8))
    feed.complete(first + 1, version=10)
    replayed: list[set[str]] = []
    retired: dict[str, int] = {}
    for step in range(10, 17):
        supply(feed, 2 if step == 10 else 4, streams=["solver"], version=step - 6)
        granted = train(feed)
        replayed.append(set(granted.replayed))
        retired |= dict.fromkeys(granted.retired, step)
    older, younger = f"t{first}.solver", f"t{first + 1}.solver"
    assert replayed == [set(), {older, younger}, {older, younger}, {younger}, {younger}, set(), set()]
    assert (retired[older], retired[younger]) == (13, 15), "what is too old is let go"


def test_the_pool_holds_so_many_trajectories_and_the_oldest_give_way() -> None:
    feed = replaying(ReplaySettings(ratio=0.1, size=3 * GROUP, max_uses=100, max_age=100), places=2)
    assert [step.replayed for step in steps(feed, 3, places=2)] == [()] * 3
    assert pool(feed) == ["t3.solver", "t4.solver", "t5.solver"]
    steps(feed, 1, places=2)
    assert pool(feed) == ["t5.solver", "t6.solver", "t7.solver"]


def test_the_draw_is_the_same_when_asked_again_and_another_for_another_step() -> None:
    feed = replaying(ReplaySettings(ratio=0.5, max_uses=1000, max_age=1000, size=20 * GROUP), places=20)
    steps(feed, 1, places=20)
    drawn = []
    for _ in range(20):
        candidates = pool(feed)
        supply(feed, 20, streams=["solver"])
        asked = feed.ledger.propose("solver", now=1.0)
        assert asked == feed.ledger.propose("solver", now=1.0)
        granted = train(feed)
        assert granted == asked
        drawn.append(tuple(sorted(candidates.index(group_id) for group_id in granted.replayed)))
    assert len(set(drawn)) == 20
    places = Counter(place for places in drawn for place in places)
    assert len(places) == 20, "every group of the pool has its chance"
    assert max(places.values()) < 18


def test_what_is_retired_is_gone_for_good_and_holds_no_trajectory() -> None:
    feed = replaying(ReplaySettings(ratio=0.5, max_uses=2, max_age=3), places=4)
    taken = steps(feed, 30, places=4)
    retired: set[str] = set()
    for step in taken:
        assert not retired & {*step.groups, *step.replayed}
        assert not retired & set(step.retired)
        retired |= set(step.retired)
    assert not retired & set(pool(feed))
    assert len(retired) > 40
    feed.ledger.apply(StepDurable(policy="solver", step=taken[-1].step))
    oldest = min(int(group_id.split(".")[0][1:]) for group_id in (*pool(feed), *waiting(feed)))
    assert take_snapshot(feed.ledger, learnt={}).floor == 1 + oldest * GROUP


PLACES = 20
STEPS = 250
SETTLED = slice(50, STEPS)


def population(settings: ReplaySettings | None, *, max_staleness: int = 8, has_filters: bool = False) -> Feed:
    selection = FRESH if settings is None else Replay(settings, FRESH)
    return Feed(
        ledger(
            policies=SOLVER,
            selection=selection,
            batch_size=PLACES * GROUP,
            max_staleness=max_staleness,
            has_filters=has_filters,
        )
    )


def tasks_per_step(feed: Feed, *, zero_variance: float = 0.0) -> float:
    """Tasks issued for each step, by a rollout that does all that admission allows, once all has settled."""
    chance = random.Random(5)
    issued = [0]
    for _ in range(STEPS):
        while tasks := feed.ledger.capacity_tasks():
            supply(feed, tasks, streams=["solver"])
            if feed.ledger.has_filters:
                apply_filters(feed, zero_variance, chance)
        train(feed)
        issued.append(feed.ledger.issued)
    each = [after - before for before, after in pairwise(issued)][SETTLED]
    return sum(each) / len(each)


def apply_filters(feed: Feed, zero_variance: float, chance: random.Random) -> None:
    """Dynamic sampling: a share of the groups has no variance and is left out."""
    complete = list(feed.ledger.streams["solver"].unfiltered)
    left_out = tuple(group_id for group_id in complete if chance.random() < zero_variance)
    kept = tuple(group_id for group_id in complete if group_id not in left_out)
    feed.ledger.apply(GroupsFiltered(policy="solver", kept=kept, left_out=left_out))


@cache
def tasks_without_replay(max_staleness: int) -> float:
    return tasks_per_step(population(None, max_staleness=max_staleness))


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.7])
@pytest.mark.parametrize(("max_staleness", "max_age"), [(0, 8), (8, 16)])
def test_rollouts_fall_to_the_share_that_is_not_replayed(ratio: float, max_staleness: int, max_age: int) -> None:
    """A pool of 10,000 that goes 8 versions back and ratios 0.3 to 0.7, as AstraFlow has it. Groups that wait for their
    first use are that much older, so with rollout ahead of the trainer the pool goes further back.
    """
    settings = ReplaySettings(ratio=ratio, size=10_000, max_age=max_age, max_uses=20)
    without = tasks_without_replay(max_staleness)
    assert without == PLACES
    with_replay = tasks_per_step(population(settings, max_staleness=max_staleness))
    assert with_replay / without == pytest.approx(1 - ratio, rel=0.02)


def test_with_two_uses_at_most_half_of_the_batches_is_replayed() -> None:
    feed = population(ReplaySettings(ratio=0.7, size=10_000, max_age=16, max_uses=2))
    assert tasks_per_step(feed) == pytest.approx(PLACES / 2, rel=0.02)
    trainer = feed.ledger.trainers["solver"]
    assert 0.48 < trainer.replayed_samples / trainer.consumed_samples <= 0.5


@pytest.mark.parametrize(
    "zero_variance", [0.25, pytest.param(0.5, marks=pytest.mark.slow), pytest.param(0.7, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_dynamic_sampling_and_replay_each_have_their_factor(ratio: float, zero_variance: float) -> None:
    """With a share z of groups without variance a step costs 1 / (1 - z) as many tasks, with replay 1 - r of those."""
    settings = ReplaySettings(ratio=ratio, max_uses=20) if ratio else None
    tasks = tasks_per_step(population(settings, has_filters=True), zero_variance=zero_variance)
    assert tasks / PLACES == pytest.approx((1 - ratio) / (1 - zero_variance), rel=0.05)
