"""A house with rooms, locked doors, containers and things, and what can be done in it. Everything here is pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

HELD = "you"
"""Where a thing is that is carried. One may carry any number."""


@dataclass(frozen=True)
class Door:
    one: str
    other: str
    key: str | None = None
    """What unlocks it; None where it was never locked."""

    def beyond(self, room: str) -> str | None:
        """The room on its other side."""
        if room == self.one:
            return self.other
        return self.one if room == self.other else None


@dataclass(frozen=True)
class Goal:
    """A thing that is to be in a container."""

    thing: str
    container: str

    def __str__(self) -> str:
        return f"put the {self.thing} in the {self.container}"


@dataclass(frozen=True)
class State:
    """All that can change."""

    room: str
    things: frozenset[tuple[str, str]]
    """Each thing with the room or the container that it is in, or HELD."""
    opened: frozenset[str] = frozenset()
    unlocked: frozenset[Door] = frozenset()

    def within(self, place: str) -> list[str]:
        return sorted(thing for thing, where in self.things if where == place)

    def moved(self, thing: str, *, to: str) -> State:
        others = frozenset(pair for pair in self.things if pair[0] != thing)
        return replace(self, things=others | {(thing, to)})


@dataclass(frozen=True)
class House:
    """What never changes, and how it begins."""

    doors: tuple[Door, ...]
    containers: Mapping[str, str]
    """Each with its room. They are closed at first."""
    goals: tuple[Goal, ...]
    start: State

    def reached(self, state: State) -> bool:
        return all((goal.thing, goal.container) in state.things for goal in self.goals)

    def actions(self, state: State) -> dict[str, State]:
        """All that can be done, in words, and what comes of it."""
        return dict(self._actions(state))

    def _actions(self, state: State) -> Iterator[tuple[str, State]]:
        held = state.within(HELD)
        here = [container for container, room in self.containers.items() if room == state.room]
        for door in self.doors:
            beyond = door.beyond(state.room)
            if beyond is None:
                continue
            if door.key is None or door in state.unlocked:
                yield f"go to {beyond}", replace(state, room=beyond)
            elif door.key in held:
                yield f"unlock {beyond} with {door.key}", replace(state, unlocked=state.unlocked | {door})
        for container in here:
            if container not in state.opened:
                yield f"open {container}", replace(state, opened=state.opened | {container})
        for place in (state.room, *(container for container in here if container in state.opened)):
            for thing in state.within(place):
                yield f"take {thing}", state.moved(thing, to=HELD)
        for thing in held:
            for container in here:
                if container in state.opened:
                    yield f"put {thing} in {container}", state.moved(thing, to=container)
            yield f"drop {thing}", state.moved(thing, to=state.room)


def view(house: House, state: State) -> str:
    """What is seen from where one stands. What a closed container holds is not."""
    seen = [f"a {thing}" for thing in state.within(state.room)]
    for container, room in house.containers.items():
        if room != state.room:
            continue
        if container not in state.opened:
            seen.append(f"a closed {container}")
        else:
            inside = " and ".join(f"a {thing}" for thing in state.within(container)) or "nothing"
            seen.append(f"an open {container} with {inside} in it")
    doors = []
    for door in house.doors:
        beyond = door.beyond(state.room)
        if beyond is not None:
            locked = door.key is not None and door not in state.unlocked
            doors.append(f"{beyond} (locked: it takes the {door.key})" if locked else beyond)
    held = " and ".join(f"a {thing}" for thing in state.within(HELD)) or "nothing"
    return (
        f"You are in the {state.room}. You see {', '.join(seen) or 'nothing'}. "
        f"Doors lead to: {', '.join(doors)}. You hold {held}."
    )
