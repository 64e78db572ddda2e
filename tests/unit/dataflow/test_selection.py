"""Which groups make a batch: streams by weight, whose groups are too old for whom, and what is asked for."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dataflow.books import GROUP, Feed
from tests.support.dataflow.jobs import spec
from tests.support.dataflow.ledger_pictures import picture
from tests.support.dataflow.offers import POLICIES, Shown, books, grant, offers, stream_of, supply, train, used
from trimtab.api.data import Data
from trimtab.api.data import Replay as ReplaySettings
from trimtab.api.scalars import Plugin
from trimtab.dataflow.ledger.records import GroupsDropped, StepDurable, StepGranted
from trimtab.dataflow.ledger.snapshot import take_snapshot
from trimtab.dataflow.mixing import MixingSchedule
from trimtab.dataflow.selection.contract import Selection
from trimtab.dataflow.selection.fresh import Fresh
from trimtab.dataflow.selection.registry import make_selection
from trimtab.dataflow.selection.replay import Replay
from trimtab.dataflow.service import begun

OWN = {"solver": {"solver": 1.0}, "judge": {"judge": 1.0}}
weights = st.dictionaries(st.sampled_from("abcde"), st.floats(0.01, 100.0), min_size=1)


def mixed(weights: dict[str, float]) -> dict[str, dict[str, float]]:
    """The solver takes these streams, the judge its own."""
    return {**OWN, "solver": weights}


@settings(max_examples=60, deadline=None)
@given(weights=weights, begin=st.integers(0, 10_000), count=st.integers(0, 64), seed=st.integers(0, 9))
def test_a_spread_counts_the_places_one_by_one(weights: dict[str, float], begin: int, count: int, seed: int) -> None:
    schedule = MixingSchedule(weights, seed=seed)
    places = Counter(schedule.names[schedule.at(place)[0]] for place in range(begin, begin + count))
    assert schedule.spread(begin, count) == {name: places[name] for name in weights}


@pytest.mark.parametrize("places", [1, 3, 4])
@pytest.mark.parametrize(("solver", "judge"), [(2, 1), (1, 1), (9, 1), (1, 40)])
def test_shares_hold_over_batches_that_are_too_small_for_them(solver: int, judge: int, places: int) -> None:
    selection = Fresh(mixed({"solver": solver, "judge": judge}), seed=0)
    feed = books(selection, places=places, max_staleness=1000)
    supply(feed, 50 * places)
    taken = [Counter(map(stream_of, train(feed).groups)) for _ in range(50)]
    schedule = MixingSchedule({"solver": solver, "judge": judge}, seed=0)
    for steps, so_far in enumerate(accumulate(taken), start=1):
        share = steps * places * schedule.shares[0] / schedule.period
        assert abs(so_far["solver"] - share) < 1, "less than one group off, at every step"
    assert sum(taken, Counter())["solver"] == pytest.approx(50 * places * solver / (solver + judge), abs=1)


def test_the_shares_are_exact_where_batches_have_room_for_them() -> None:
    feed = books(Fresh(mixed({"solver": 3, "judge": 1}), seed=0), places=4, max_staleness=1000)
    supply(feed, 40)
    assert [Counter(map(stream_of, train(feed).groups)) for _ in range(10)] == [{"solver": 3, "judge": 1}] * 10


def test_a_batch_waits_while_one_stream_is_short() -> None:
    feed = books(Fresh(mixed({"solver": 1, "judge": 1}), seed=0), places=4)
    supply(feed, 1)
    supply(feed, 9, streams=["solver"])
    assert feed.ledger.propose("solver", now=1.0) is None, "ten of the solver's do not make up for one of the judge's"
    assert not feed.ledger.can_decide("solver")
    feed.complete(1, policy="judge")
    assert Counter(map(stream_of, grant(feed).groups)) == {"solver": 2, "judge": 2}


def test_within_a_stream_the_earliest_deadline_is_first() -> None:
    feed = books(Fresh(mixed({"judge": 1}), seed=0), places=2)
    for version in (2, 0, 1, 0):
        supply(feed, 1, version=version)
    assert grant(feed).groups == ("t1.judge", "t3.judge")


def test_groups_of_another_policy_are_judged_by_its_version() -> None:
    """The judge, at its first step, takes what the solver samples, who is at its fifth."""
    feed = books(Fresh({"solver": {"solver": 1}, "judge": {"solver": 1}}, seed=0), places=1)
    for _ in range(5):
        supply(feed, 1, streams=["solver"])
        train(feed)
    assert feed.ledger.trainers["judge"].next_step == 0
    granted = grant(feed, "judge")
    assert granted.dropped == ("t0.solver", "t1.solver", "t2.solver"), "versions 0 to 2, where 5 is the newest"
    assert granted.groups == ("t3.solver",)


def test_a_policys_own_groups_are_judged_by_the_version_that_will_train_them() -> None:
    feed = books(Fresh(OWN, seed=0), places=1, max_staleness=0)
    supply(feed, 2)
    grant(feed)
    assert feed.ledger.trainers["solver"].trained_steps == 0
    decided = feed.ledger.propose("solver", now=1.0)
    assert decided == GroupsDropped(policy="solver", step=1, dropped=("t1.solver",))


def test_a_policy_may_train_on_nothing_of_its_own() -> None:
    """Nobody takes what the judge says. It holds up no task, and no trajectory in the stream."""
    feed = books(Fresh({"solver": {"solver": 1}, "judge": {"solver": 1}}, seed=0), places=2)
    assert list(feed.ledger.trainers["judge"].buffers) == ["solver"]
    for step in range(6):
        tasks = feed.ledger.capacity_tasks()
        assert tasks == (6 if step == 0 else 2), "three batches ahead, then one for each that is trained"
        supply(feed, tasks)
        assert {stream_of(group_id) for group_id in (*train(feed).groups, *train(feed, "judge").groups)} == {"solver"}
    for policy in POLICIES:
        feed.ledger.apply(StepDurable(policy=policy, step=5))
    assert take_snapshot(feed.ledger, learnt={}).floor == 1 + 12 * 2 * GROUP, "four of the solver's 16 groups wait"


def test_the_neediest_stream_decides_how_many_tasks_go_out() -> None:
    feed = books(Fresh(mixed({"solver": 3, "judge": 1}), seed=0), places=4, max_staleness=0)
    assert feed.ledger.capacity_tasks() == 3, "as many as the solver's share; the judge itself could do with four"
    supply(feed, 3, streams=["judge"])
    assert feed.ledger.capacity_tasks() == 0, "they are under way"


def test_books_are_routed_as_the_manifest_says_whatever_they_say() -> None:
    feed = books(Fresh(OWN, seed=0), places=2)
    assert begun(Fresh(OWN, seed=0), {}, feed.ledger).routes == {"solver": ("solver",), "judge": ("judge",)}
    both = Fresh(mixed({"solver": 1, "judge": 1}), seed=0)
    routed = begun(both, {}, feed.ledger)
    assert routed.routes == {"solver": ("solver", "judge"), "judge": ("judge",)}
    feed.ledger.apply(routed)
    before = picture(feed.ledger)
    feed.ledger.apply(begun(both, {}, feed.ledger))
    assert picture(feed.ledger) == before


def some_selection(replay: bool, ratio: float, max_uses: int) -> Selection:
    fresh = Fresh(mixed({"solver": 2, "judge": 1}), seed=0)
    return Replay(ReplaySettings(ratio=ratio, max_age=4, max_uses=max_uses), fresh) if replay else fresh


@given(
    offer=offers(),
    replay=st.booleans(),
    ratio=st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.95]),
    max_uses=st.integers(2, 4),
    later=st.integers(0, 3),
)
def test_a_choice_that_waits_is_asked_for(offer: Shown, replay: bool, ratio: float, max_uses: int, later: int) -> None:
    """Else it would wait for ever: rollout is asked for what `needs` says, and for nothing else."""
    selection = some_selection(replay, ratio, max_uses)
    choice = selection.choose(offer)
    needs = selection.needs(offer, steps=1)
    if choice is None:
        assert any(offer.waiting(stream) < count for stream, count in needs.items())
    else:
        assert len({*choice.fresh, *choice.replayed}) == offer.places
        taken = Counter(group_id.rstrip("0123456789") for group_id in choice.fresh)
        assert all(needs[stream] >= count for stream, count in taken.items())
    more = selection.needs(offer, steps=1 + later)
    assert all(more[stream] >= count for stream, count in needs.items())


@pytest.mark.parametrize("ratio", [0.3, 0.7])
@pytest.mark.parametrize("places", [1, 5])
@pytest.mark.parametrize("weights", [{"solver": 2, "judge": 1}, {"judge": 1}, {"solver": 1, "judge": 30}])
def test_tasks_as_admitted_keep_every_trainer_going(weights: dict[str, float], places: int, ratio: float) -> None:
    """Trainers take different numbers of groups of the same tasks. One may wait for another, but never all of them."""
    selection = Replay(ReplaySettings(ratio=ratio), Fresh(mixed(weights), seed=0))
    feed = books(selection, places=places)
    for _ in range(60):
        supply(feed, feed.ledger.capacity_tasks())
        assert [policy for policy in POLICIES if trained_on(feed, policy)], "nobody has a batch"
    assert min(trainer.next_step for trainer in feed.ledger.trainers.values()) > 35


def trained_on(feed: Feed, policy: str) -> bool:
    """Whether there was a step for the policy, which is trained then. Stale groups are given up first."""
    while isinstance(decided := feed.ledger.propose(policy, now=1.0), GroupsDropped):
        feed.ledger.apply(decided)
    if decided is not None:
        train(feed, policy)
    return decided is not None


def test_what_an_earlier_manifest_kept_for_replay_is_let_go() -> None:
    """Else its trajectories would stay in the stream as long as the job runs."""
    offer = Shown(batch=1, filled=0, places=1, groups={"solver": ["t9"]}, pool=[used("t0"), used("t1")])
    choice = Fresh(OWN, seed=0).choose(offer)
    assert choice is not None
    assert choice.retired == ["t0", "t1"]


def data_with(**fields: Any) -> Data:
    return spec(policies=len(POLICIES), data=fields).data


def made(**fields: Any) -> Selection:
    def unused(plugin: Plugin) -> object:
        raise AssertionError(f"nobody asked for {plugin.entrypoint}")

    return make_selection(data_with(**fields), policies=list(POLICIES), load=unused)


MIX = [{"policy": "judge", "streams": [{"policy": "solver", "weight": 2}, {"policy": "judge"}]}]


def first_steps(selection: Selection) -> list[StepGranted]:
    feed: Feed = books(selection, places=4)
    supply(feed, 12)
    return [train(feed, "judge") for _ in range(2)]


def test_without_mix_and_replay_every_policy_takes_its_own_and_keeps_nothing() -> None:
    selection = made()
    assert [selection.streams(policy) for policy in POLICIES] == [("solver",), ("judge",)]
    assert all(not granted.replayed and not granted.pooled for granted in first_steps(selection))


def test_mix_and_replay_come_together_from_the_manifest() -> None:
    """A third of what is fresh is the judge's own, and half of the second step was in the first."""
    selection = made(mix=MIX, replay={"ratio": 0.5})
    assert [selection.streams(policy) for policy in POLICIES] == [("solver",), ("solver", "judge")]
    first, second = first_steps(selection)
    assert (len(first.groups), len(second.groups), len(second.replayed)) == (4, 2, 2)
    assert set(second.replayed) < set(first.groups)
    assert Counter(map(stream_of, (*first.groups, *second.groups))) == {"solver": 4, "judge": 2}


def test_ties_of_a_mix_follow_the_seed_of_the_job() -> None:
    halves = [{"policy": "judge", "streams": [{"policy": "solver"}, {"policy": "judge"}]}]
    offer = Shown(batch=1, filled=0, places=1, policy="judge")
    first = {str(made(mix=halves, seed=seed).needs(offer, steps=1)) for seed in range(10)}
    assert len(first) == 2
