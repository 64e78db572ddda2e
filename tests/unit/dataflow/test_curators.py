"""Curators one by one: whom they admit, what they keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.dataflow.curator_events import EASY, HARD, MIXED, events, feed, through_the_ledger
from tests.support.dataflow.finished_groups import finished
from trimtab.api.data import Curator as CuratorSettings
from trimtab.api.data import Curriculum as CurriculumSettings
from trimtab.api.data import Greso as GresoSettings
from trimtab.api.scalars import Plugin
from trimtab.dataflow.curators.contract import Curator, PassThrough
from trimtab.dataflow.curators.curriculum import Curriculum
from trimtab.dataflow.curators.greso import Greso
from trimtab.dataflow.curators.registry import make_curator
from trimtab.dataflow.outcomes import GroupOutcome
from trimtab.fabric.pod import JobMisconfigured


def greso(**settings: Any) -> Greso:
    """Knows both ends of the rewards."""
    curator = Greso(GresoSettings(**settings))
    curator.observe(finished("known", MIXED))
    return curator


def chance(curator: Curator, prompt_id: str, content: Mapping[str, Any] | None = None) -> float:
    """The probability with which a prompt is admitted, to a thousandth: curators compare it with the draw."""
    return sum(curator.admits(prompt_id, content or {}, draw=draw / 1000) for draw in range(1000)) / 1000


def unused(plugin: Plugin) -> object:
    raise AssertionError(f"nobody asked for {plugin.entrypoint}")


def test_without_a_curator_every_prompt_passes() -> None:
    curator = make_curator(CuratorSettings(), prompts=None, load=unused)
    curator.observe(finished("a", HARD))
    curator.stepped("solver", 0)
    assert isinstance(curator, PassThrough)
    assert chance(curator, "a") == 1.0
    assert curator.groups_needed(7) == 7
    assert curator.state() == {}


@pytest.mark.parametrize("rewards", [EASY, HARD])
def test_each_zero_variance_group_in_a_row_makes_the_next_less_likely(rewards: tuple[float, ...]) -> None:
    curator = greso(initial_probability=0.5, floor_easy=0.01, floor_hard=0.01)
    expected = [1.0, 0.5, 0.25, 0.125]
    for probability in expected:
        assert chance(curator, "a") == probability
        curator.observe(finished("a", rewards))
    assert chance(curator, "b") == 1.0


def test_variance_ends_a_streak_and_the_other_kind_begins_a_new_one() -> None:
    curator = greso(initial_probability=0.5)
    for rewards in (HARD, HARD, EASY):
        curator.observe(finished("a", rewards))
    assert chance(curator, "a") == 0.5
    curator.observe(finished("a", MIXED))
    assert chance(curator, "a") == 1.0


def test_the_floors_hold_however_long_the_streak() -> None:
    """Those of AstraFlow: what is out of reach is tried more often than what is solved."""
    curator = greso()
    for _ in range(2000):
        curator.observe(finished("a", HARD))
        curator.observe(finished("b", EASY))
    assert (chance(curator, "a"), chance(curator, "b")) == (0.3, 0.05)


def test_probabilities_fall_at_or_above_the_target_and_rise_below_it_within_their_limits() -> None:
    curator = greso(initial_probability=0.5, step=0.1, target_easy=0.5, target_hard=0.5)
    curator.observe(finished("easy", EASY))
    curator.observe(finished("hard", HARD))

    def step_on(*groups: tuple[str, tuple[float, ...]]) -> tuple[float, float]:
        for prompt_id, rewards in groups:
            curator.observe(finished(prompt_id, rewards))
        curator.stepped("solver", 0)
        stream = curator.state()["policies"]["solver"]["roles"]["solver"]
        return round(stream["p_easy"], 6), round(stream["p_hard"], 6)

    assert step_on() == (0.5, 0.5), "no prompt with a streak has come back yet"
    assert step_on(("easy", EASY), ("new", MIXED)) == (0.4, 0.6), "half of the groups are easy, none is hard"
    assert step_on() == (0.4, 0.6), "nothing was observed"
    for _ in range(10):
        latest = step_on(("easy", EASY))
    assert latest == (0.05, 0.95)


@pytest.mark.parametrize(
    ("lowest", "highest", "value", "easy"),
    [(0, 1, 1, True), (0, 1, 0.1, False), (-1, 1, -1, False), (-5, -1, -1, True), (0, 10, 10, True), (0, 10, 5, False)],
)
def test_easy_and_hard_are_the_ends_of_the_rewards_seen(
    lowest: float, highest: float, value: float, easy: bool
) -> None:
    curator = Greso(GresoSettings())
    curator.observe(finished("range", (lowest, highest)))
    curator.observe(finished("a", (value, value)))
    streak = curator.state()["policies"]["solver"]["roles"]["solver"]["streaks"]["a"]
    assert (streak > 0) == easy


def test_with_one_reward_known_its_sign_decides_until_there_are_two() -> None:
    curator = Greso(GresoSettings())
    curator.observe(finished("a", (1.0, 1.0)))
    streaks = curator.state()["policies"]["solver"]["roles"]["solver"]["streaks"]
    assert streaks == {"a": 1}
    curator.observe(finished("b", (2.0, 3.0)))
    curator.observe(finished("a", (1.0, 1.0)))
    assert curator.state()["policies"]["solver"]["roles"]["solver"]["streaks"] == {"a": -1}


def test_a_prompt_is_skipped_only_if_no_policy_wants_it() -> None:
    curator = greso(initial_probability=0.5)
    curator.observe(finished("known", MIXED, policy="judge", role="judge"))
    curator.observe(finished("a", EASY))
    assert chance(curator, "a") == 1.0, "the judge has no streak on it"
    curator.observe(finished("a", HARD, policy="judge", role="judge"))
    curator.observe(finished("a", EASY))
    assert chance(curator, "a") == 0.5, "the shorter streak decides"
    curator.observe(finished("known", MIXED, role="critic"))
    assert chance(curator, "a") == 1.0, "another role of a policy has its own say"


def test_a_policy_that_no_longer_steps_loses_its_say() -> None:
    curator = greso(initial_probability=0.5)
    curator.observe(finished("a", HARD))
    curator.observe(finished("a", MIXED, policy="judge", role="judge"))
    for step in range(100):
        curator.stepped("judge", step)
        curator.stepped("solver", step)
    assert chance(curator, "a") == 1.0
    for step in range(100, 163):
        curator.stepped("solver", step)
    assert chance(curator, "a") == 1.0
    for step in range(163, 170):
        curator.stepped("solver", step)
    assert chance(curator, "a") == 0.5
    curator.stepped("judge", 100)
    assert chance(curator, "a") == 1.0, "it was only slow"


@pytest.mark.parametrize(("missing", "share", "expected"), [(0, 0.5, 0), (8, 0.0, 10), (8, 0.5, 20), (8, 1.0, 48)])
def test_groups_needed_follows_the_share_and_is_bounded(missing: int, share: float, expected: int) -> None:
    curator = Greso(GresoSettings(margin=1.25))
    for number in range(4001):
        silent = int((number + 1) * share) > int(number * share)
        curator.observe(finished(f"p{number}", HARD if silent else MIXED))
    assert curator.groups_needed(missing) == expected


def test_groups_needed_follows_a_change_of_the_share() -> None:
    curator = Greso(GresoSettings(margin=1.0))
    for number in range(4000):
        curator.observe(finished(f"p{number}", HARD))
    for number in range(1500):
        curator.observe(finished(f"p{number}", MIXED))
    assert curator.groups_needed(100) == 101


def test_groups_needed_before_any_group_is_the_margin_alone() -> None:
    assert Greso(GresoSettings(margin=1.5)).groups_needed(100) == 150


def test_of_several_policies_the_one_with_the_fewest_useful_groups_sets_the_estimate() -> None:
    curator = Greso(GresoSettings(margin=1.0))
    for number in range(100):
        curator.observe(finished(f"p{number}", MIXED))
    assert curator.groups_needed(10) == 10
    for number in range(100):
        curator.observe(finished(f"p{number}", HARD, policy="judge", role="judge"))
    assert curator.groups_needed(10) == 60


def test_a_few_groups_do_not_set_the_estimate() -> None:
    curator = Greso(GresoSettings(margin=1.0))
    for number in range(3):
        curator.observe(finished(f"p{number}", HARD))
    assert curator.groups_needed(100) == 105


SOME_CURATORS = [
    lambda: Greso(GresoSettings()),
    lambda: Curriculum(CurriculumSettings(steps=20), range(100)),
    PassThrough,
]


@pytest.mark.parametrize("make", SOME_CURATORS)
def test_a_restored_curator_goes_on_as_if_nothing_had_happened(make: Any) -> None:
    happened = list(events(3, 400))
    first, second = make(), make()
    feed(first, happened[:200])
    second.restore(through_the_ledger(first.state()))
    feed(first, happened[200:])
    feed(second, happened[200:])
    assert second.state() == first.state()
    contents = [(f"p{number}", {"difficulty": number}) for number in range(40)]
    assert [chance(second, *prompt) for prompt in contents] == [chance(first, *prompt) for prompt in contents]


@pytest.mark.parametrize("make", SOME_CURATORS)
def test_the_same_events_give_the_same_state_whoever_was_asked_between(make: Any) -> None:
    asked, unasked = make(), make()
    for event in events(4, 200):
        feed(asked, [event])
        asked.admits("p1", {"difficulty": 1}, draw=0.3)
        feed(unasked, [event])
    assert asked.state() == unasked.state()


def test_a_state_once_given_does_not_change() -> None:
    curator = greso()
    curator.observe(finished("a", HARD))
    before = curator.state()
    kept = through_the_ledger(before)
    feed(curator, list(events(5, 50)))
    assert before == kept


def test_the_state_holds_prompts_with_a_streak_and_no_other() -> None:
    curator = greso()
    for number in range(5000):
        curator.observe(finished(f"p{number}", HARD))
    long = len(msgspec.msgpack.encode(curator.state()))
    for number in range(5000):
        curator.observe(finished(f"p{number}", MIXED))
    assert long > 20_000
    assert len(msgspec.msgpack.encode(curator.state())) < 500


def test_the_share_in_play_grows_linearly_easiest_first() -> None:
    rng = np.random.default_rng(6)
    difficulties = rng.permutation(np.concatenate([rng.normal(2, 1, 600), rng.normal(8, 2, 400)])).tolist()
    curator = Curriculum(CurriculumSettings(start=0.2, steps=100), difficulties)
    ordered = sorted(difficulties)
    for step in range(-1, 130):
        if step >= 0:
            curator.stepped("solver", step)
        if (step + 1) % 25 == 0:
            share = min(1.0, 0.2 + 0.8 * (step + 1) / 100)
            in_play = [d for d in difficulties if curator.admits("p", {"difficulty": d}, draw=0.999)]
            assert sorted(in_play) == ordered[: round(share * 1000)]


def test_of_prompts_with_equal_difficulty_a_share_comes_in() -> None:
    curator = Curriculum(CurriculumSettings(start=0.2, steps=100), [1] * 500 + [2] * 500)
    easy, hard = {"difficulty": 1}, {"difficulty": 2}
    assert (chance(curator, "a", easy), chance(curator, "b", hard)) == (0.4, 0.0)
    curator.stepped("solver", 49)
    assert (chance(curator, "a", easy), chance(curator, "b", hard)) == (1.0, 0.2)
    curator.stepped("solver", 99)
    assert (chance(curator, "a", easy), chance(curator, "b", hard)) == (1.0, 1.0)


def test_some_prompt_is_always_in_play() -> None:
    curator = Curriculum(CurriculumSettings(start=0.001), [3, 1, 2])
    assert [curator.admits("p", {"difficulty": d}, draw=0.999) for d in (1, 2, 3)] == [True, False, False]


def test_the_policy_furthest_on_sets_the_pace() -> None:
    curator = Curriculum(CurriculumSettings(steps=10), range(100))
    curator.stepped("solver", 7)
    curator.stepped("judge", 2)
    assert curator.state() == {"steps": 8}


@pytest.mark.parametrize("content", [{}, {"level": None}, {"level": "3"}, {"level": True}, {"level": math.nan}])
def test_a_prompt_without_difficulty_is_refused_by_name(content: dict[str, Any]) -> None:
    settings = CuratorSettings(curriculum=CurriculumSettings(difficulty_column="level"))
    prompts = [("train-0", {"level": 1}), ("train-1", content)]
    with pytest.raises(JobMisconfigured, match="'train-1' needs a number in column 'level'"):
        make_curator(settings, prompts=prompts, load=unused)


@pytest.mark.parametrize(("prompts", "reason"), [(None, "must know all prompts"), ([], "no prompts")])
def test_a_curriculum_without_known_prompts_is_refused(prompts: list[Any] | None, reason: str) -> None:
    with pytest.raises(JobMisconfigured, match=reason):
        make_curator(CuratorSettings(curriculum=CurriculumSettings()), prompts=prompts, load=unused)


def test_the_manifest_chooses_the_curator() -> None:
    chosen = make_curator(CuratorSettings(greso=GresoSettings()), prompts=None, load=unused)
    assert isinstance(chosen, Greso)
    prompts: list[tuple[str, dict[str, Any]]] = [("a", {"difficulty": 1}), ("b", {"difficulty": 2.5})]
    chosen = make_curator(CuratorSettings(curriculum=CurriculumSettings()), prompts=prompts, load=unused)
    assert isinstance(chosen, Curriculum)
    own = Resting()
    plugin = Plugin(entrypoint="mine:Own", args={"rest": 3})
    asked: list[Plugin] = []

    def load(named: Plugin) -> object:
        asked.append(named)
        return own

    chosen = make_curator(CuratorSettings(custom=plugin), prompts=None, load=load)
    assert asked == [plugin]
    assert not chosen.admits("a", {}, draw=0.0)
    chosen.observe(finished("a", (0.0, 1.0)))
    assert own.observed == ["a"]


class Resting(PassThrough):
    """Admits nothing, and raises when a step is granted."""

    def __init__(self) -> None:
        self.observed: list[str] = []

    def admits(self, prompt_id: str, content: Mapping[str, Any], *, draw: float) -> bool:
        return False

    def observe(self, outcome: GroupOutcome) -> None:
        self.observed.append(outcome.prompt_id)

    def stepped(self, policy: str, step: int) -> None:
        raise KeyError("lost")


def test_what_a_custom_curator_raises_is_about_the_manifest() -> None:
    settings = CuratorSettings(custom=Plugin(entrypoint="mine:Resting"))
    chosen = make_curator(settings, prompts=None, load=lambda plugin: Resting())
    with pytest.raises(JobMisconfigured, match=r"mine:Resting.stepped raised KeyError"):
        chosen.stepped("solver", 1)


METHODS = ("admits", "observe", "stepped", "groups_needed", "state", "restore")


@pytest.mark.parametrize("method", METHODS)
def test_a_custom_curator_that_lacks_a_method_is_refused_by_its_name(method: str) -> None:
    methods = {name: getattr(PassThrough, name) for name in METHODS}
    del methods[method]
    incomplete = type("Incomplete", (), methods)()
    settings = CuratorSettings(custom=Plugin(entrypoint="mine:Incomplete"))
    with pytest.raises(JobMisconfigured, match=f"mine:Incomplete has no method '{method}'"):
        make_curator(settings, prompts=None, load=lambda plugin: incomplete)
