"""The shipped world as an environment: find things, get through doors, and put all where it belongs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from trimtab.rollout.workflows.errors import PromptUnusable
from trimtab.rollout.worlds.drawing import HouseSize, draw_house
from trimtab.rollout.worlds.planning import shortest_plan
from trimtab.rollout.worlds.rooms import House, State, view

_GOAL, _PROGRESS = "goal", "progress"
_ACTION = re.compile(r"action:", re.IGNORECASE)


class HouseWorld:
    """The prompt's column `house` is the seed of a house of the given size.

    `reward: goal` gives 1 when all is where it belongs. `reward: progress` gives for each step the share of the
    shortest plan by which it came nearer, less than 0 where it went away: all of them add up to 1 for who gets there,
    whatever the way. The policy acts by the last line of what it says, or by what is behind its last `Action:`.
    """

    def __init__(
        self,
        *,
        rooms: int = 6,
        containers: int = 4,
        locks: int = 2,
        goals: int = 2,
        others: int = 2,
        least_steps: int = 10,
        reward: str = _PROGRESS,
        show_actions: bool = True,
    ) -> None:
        if reward not in (_GOAL, _PROGRESS):
            raise ValueError(f"reward is {reward!r}: {_GOAL} or {_PROGRESS}")
        self._size = HouseSize(
            rooms=rooms, containers=containers, locks=locks, goals=goals, others=others, least_steps=least_steps
        )
        self._reward = reward
        self._show_actions = show_actions
        self._house: House | None = None
        self._state: State | None = None
        self._known: dict[State, int] = {}

    def reset(self, prompt: Mapping[str, Any], /) -> str:
        seed = prompt.get("house")
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise PromptUnusable(f"column 'house' is {seed!r:.200}: the seed of a house, a number")
        self._house = _house(seed, self._size)
        self._state = self._house.start
        self._known = {}
        goals = " and ".join(map(str, self._house.goals))
        return f"Your task: {goals}.\n{self._seen()}"

    def step(self, action: str, /) -> tuple[str, float, bool]:
        house, state = self._current()
        following = house.actions(state).get(chosen_action(action))
        if following is None:
            return f"Nothing happens.\n{self._seen()}", 0.0, False
        self._state = following
        done = house.reached(following)
        text = "Done." if done else self._seen()
        return text, self._worth(house, state, following, done=done), done

    @property
    def available_actions(self) -> list[str]:
        house, state = self._current()
        return list(house.actions(state))

    def _seen(self) -> str:
        house, state = self._current()
        actions = f"\nYou can: {'; '.join(house.actions(state))}." if self._show_actions else ""
        return f"{view(house, state)}{actions}\n"

    def _current(self) -> tuple[House, State]:
        if self._house is None or self._state is None:
            raise RuntimeError("there is no house yet: call reset() before step()")
        return self._house, self._state

    def _worth(self, house: House, before: State, after: State, *, done: bool) -> float:
        if self._reward == _GOAL:
            return float(done)
        return (self._left(house, before) - self._left(house, after)) / self._left(house, house.start)

    def _left(self, house: House, state: State) -> int:
        """Steps to the goals. Searching takes milliseconds, and each state is asked for twice."""
        if state not in self._known:
            self._known[state] = len(shortest_plan(house, state))
        return self._known[state]


def chosen_action(said: str) -> str:
    """The action in what a policy said, in the words in which the world knows it."""
    lines = [line.strip() for line in _ACTION.split(said)[-1].splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    return " ".join(last.lower().rstrip(".!").split())


@lru_cache(maxsize=1024)
def _house(seed: int, size: HouseSize) -> House:
    """All episodes of a group play in the same one."""
    return draw_house(seed, size)
