"""The shortest way from a state of a house to its goals, for one who knows where everything is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from trimtab.rollout.worlds.rooms import HELD, House, State


class Unsolvable(ValueError):
    """The goals cannot be reached."""


def shortest_plan(house: House, state: State) -> list[str]:
    """As actions. Raises Unsolvable.

    Nothing is gained by putting something where no goal wants it, by taking what is neither a key nor wanted, or by
    opening what holds nothing of use, as any number of things may be carried: such actions are left out, and the plan
    is still the shortest.
    """
    if house.reached(state):
        return []
    before: dict[State, tuple[State, str]] = {}
    seen = {state}
    waiting = deque([state])
    while waiting:
        current = waiting.popleft()
        for action, following in _useful(house, current):
            if following in seen:
                continue
            seen.add(following)
            before[following] = (current, action)
            if house.reached(following):
                return _actions(before, following)
            waiting.append(following)
    raise Unsolvable(f"no way to {', '.join(map(str, house.goals))}")


def _useful(house: House, state: State) -> Iterator[tuple[str, State]]:
    wanted = {goal.thing: goal.container for goal in house.goals}
    keys = {door.key for door in house.doors if door.key is not None and door not in state.unlocked}
    to_take = {thing for thing, where in state.things if where not in (HELD, wanted.get(thing))} & (keys | set(wanted))
    to_open = {where for thing, where in state.things if thing in to_take} | set(wanted.values())
    for action, following in house.actions(state).items():
        verb, _, rest = action.partition(" ")
        thing, _, container = rest.partition(" in ")
        useful = {
            "open": rest in to_open,
            "take": rest in to_take,
            "put": wanted.get(thing) == container,
            "drop": False,
        }
        if useful.get(verb, True):
            yield action, following


def _actions(before: dict[State, tuple[State, str]], state: State) -> list[str]:
    actions: list[str] = []
    while state in before:
        state, action = before[state]
        actions.append(action)
    return actions[::-1]
