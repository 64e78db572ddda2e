"""The shipped world: every house can be solved, plans are the shortest there are, and progress adds up."""

from __future__ import annotations

from collections import deque

import pytest

from trimtab.rollout.workflows.errors import PromptUnusable
from trimtab.rollout.worlds.drawing import HouseSize, draw_house
from trimtab.rollout.worlds.house import HouseWorld, chosen_action
from trimtab.rollout.worlds.planning import Unsolvable, shortest_plan
from trimtab.rollout.worlds.rooms import HELD, Door, Goal, House, State, view

SMALL = HouseSize(rooms=3, containers=2, locks=1, goals=1, others=0, least_steps=3)
COTTAGE = House(
    doors=(Door("hall", "kitchen"), Door("kitchen", "cellar", "red key")),
    containers={"chest": "hall", "box": "cellar"},
    goals=(Goal("cup", "box"),),
    start=State("hall", frozenset({("red key", "chest"), ("cup", "kitchen"), ("book", "hall")})),
)
PLAN = [
    *("open chest", "take red key", "go to kitchen", "take cup", "unlock cellar with red key", "go to cellar"),
    *("open box", "put cup in box"),
]


def steps_by_any_action(house: House) -> int:
    """The shortest way when everything that can be done is tried."""
    waiting, steps = deque([(house.start, 0)]), {house.start}
    while waiting:
        state, taken = waiting.popleft()
        if house.reached(state):
            return taken
        for following in house.actions(state).values():
            if following not in steps:
                steps.add(following)
                waiting.append((following, taken + 1))
    raise AssertionError("cannot be solved")


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_is_as_short_as_any_action_could_make_it(seed: int) -> None:
    house = draw_house(seed, SMALL)
    assert len(shortest_plan(house, house.start)) == steps_by_any_action(house)


@pytest.mark.parametrize("seed", range(12))
def test_every_house_is_solved_by_its_plan_and_takes_planning(seed: int) -> None:
    house = draw_house(seed, HouseSize())
    plan = shortest_plan(house, house.start)
    assert len(plan) >= 10
    state = house.start
    for action in plan:
        assert not house.reached(state)
        state = house.actions(state)[action]
    assert house.reached(state)


def test_the_same_seed_draws_the_same_house_and_another_another() -> None:
    assert draw_house(7, HouseSize()) == draw_house(7, HouseSize())
    assert draw_house(7, HouseSize()) != draw_house(8, HouseSize())


def test_a_locked_door_takes_its_key_and_a_closed_container_hides_what_it_holds() -> None:
    assert sorted(shortest_plan(COTTAGE, COTTAGE.start)) == sorted(PLAN)
    assert "red key" not in view(COTTAGE, COTTAGE.start)
    opened = COTTAGE.actions(COTTAGE.start)["open chest"]
    assert "an open chest with a red key in it" in view(COTTAGE, opened)
    at_the_door = State("kitchen", COTTAGE.start.things)
    assert "cellar (locked: it takes the red key)" in view(COTTAGE, at_the_door)
    assert set(COTTAGE.actions(at_the_door)) == {"go to hall", "take cup"}
    with_key = at_the_door.moved("red key", to=HELD)
    assert "unlock cellar with red key" in COTTAGE.actions(with_key)


def test_a_house_whose_key_is_behind_its_own_door_is_known_as_unsolvable() -> None:
    house = House(COTTAGE.doors, COTTAGE.containers, COTTAGE.goals, COTTAGE.start.moved("red key", to="box"))
    with pytest.raises(Unsolvable, match="no way to put the cup in the box"):
        shortest_plan(house, house.start)


@pytest.mark.parametrize("reward", ["goal", "progress"])
def test_who_gets_there_is_worth_one_whatever_the_way(reward: str) -> None:
    world = HouseWorld(reward=reward)
    world.reset({"house": 3})
    house = draw_house(3, HouseSize())
    detour = next(action for action in world.available_actions if action.startswith("go to"))
    rewards = [world.step(detour)[1], world.step("dance")[1], world.step(f"go to {house.start.room}")[1]]
    done = False
    for action in shortest_plan(house, house.start):
        assert not done
        text, worth, done = world.step(action)
        rewards.append(worth)
    assert (text, done) == ("Done.", True)
    assert sum(rewards) == pytest.approx(1.0)
    assert (min(rewards) < 0) == (reward == "progress")


def test_progress_of_who_gives_up_is_the_share_of_the_way() -> None:
    world, house = HouseWorld(), draw_house(5, HouseSize())
    world.reset({"house": 5})
    plan = shortest_plan(house, house.start)
    half = len(plan) // 2
    assert sum(world.step(action)[1] for action in plan[:half]) == pytest.approx(half / len(plan))


def test_what_cannot_be_done_changes_nothing_and_is_told() -> None:
    world = HouseWorld(show_actions=False)
    first = world.reset({"house": 1})
    text, reward, done = world.step("fly to the moon")
    assert (text, reward, done) == ("Nothing happens.\n" + first.split("\n", 1)[1], 0.0, False)
    assert "You can" not in first


@pytest.mark.parametrize(
    "said",
    ["go to hall", "Go to  hall.", "I think.\nAction: go to hall", "ACTION: look\nno, wait.\nAction:\n go to hall\n"],
)
def test_an_action_is_found_in_what_is_said(said: str) -> None:
    assert chosen_action(said) == "go to hall"


@pytest.mark.parametrize("seed", [None, "3", True])
def test_a_prompt_without_a_house_is_refused(seed: object) -> None:
    with pytest.raises(PromptUnusable, match="column 'house' is"):
        HouseWorld().reset({"house": seed})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reward": "win"}, "reward is 'win': goal or progress"),
        ({"rooms": 99}, "rooms is 99: a number from 2 to 10"),
        ({"rooms": 2, "locks": 2}, "locks is 2: a number from 0 to 1"),
        ({"goals": 0}, "goals is 0: a number from 1 to 3"),
    ],
)
def test_a_size_that_cannot_be_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HouseWorld(**arguments)  # type: ignore[arg-type]


def test_a_house_that_no_size_can_make_so_long_is_named() -> None:
    with pytest.raises(ValueError, match="were all done in less than 90 steps: lower least_steps"):
        draw_house(0, HouseSize(rooms=2, containers=2, locks=0, goals=1, others=0, least_steps=90))
