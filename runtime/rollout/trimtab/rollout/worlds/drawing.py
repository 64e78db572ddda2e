"""Draws a house by a seed: every one can be solved, and none in less than so many steps."""

from __future__ import annotations

import random
from dataclasses import dataclass

from trimtab.rollout.worlds.planning import shortest_plan
from trimtab.rollout.worlds.rooms import Door, Goal, House, State

ROOMS = ("hall", "kitchen", "cellar", "attic", "study", "bedroom", "library", "pantry", "workshop", "garden")
CONTAINERS = ("chest", "cupboard", "drawer", "box", "trunk", "cabinet", "basket", "locker")
COLOURS = ("red", "blue", "green", "yellow")
THINGS = ("cup", "book", "lamp", "coin", "pear", "ring", "candle", "spoon")
_MOST_DRAWS = 1000


@dataclass(frozen=True, kw_only=True)
class HouseSize:
    rooms: int = 6
    containers: int = 4
    locks: int = 2
    goals: int = 2
    others: int = 2
    """Things that are of no use."""
    least_steps: int = 10
    """Of the shortest plan."""

    def __post_init__(self) -> None:
        # Larger ones take seconds to plan, and every step is planned.
        most = {
            "rooms": (2, len(ROOMS)),
            "containers": (2, len(CONTAINERS)),
            "locks": (0, min(3, self.rooms - 1)),
            "goals": (1, 3),
            "others": (0, len(THINGS) - self.goals),
            "least_steps": (0, 100),
        }
        for name, (low, high) in most.items():
            value = getattr(self, name)
            if not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name} is {value!r}: a number from {low} to {high}")


def draw_house(seed: int, size: HouseSize) -> House:
    """The same for the same seed and size. Raises ValueError where no house of this size takes so many steps."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    for _ in range(_MOST_DRAWS):
        house = _drawn(chance, size)
        if len(shortest_plan(house, house.start)) >= size.least_steps:
            return house
    raise ValueError(
        f"{_MOST_DRAWS} houses of seed {seed} were all done in less than {size.least_steps} steps: lower least_steps, "
        "or have more rooms, locks or goals"
    )


def _drawn(chance: random.Random, size: HouseSize) -> House:
    rooms = chance.sample(ROOMS, size.rooms)
    # A tree: each room hangs on one before it, so that a locked door keeps away all that hangs behind it.
    parents = {room: chance.choice(rooms[:number]) for number, room in enumerate(rooms) if number}
    locked = sorted(chance.sample(rooms[1:], size.locks), key=rooms.index)
    keys = {room: f"{colour} key" for room, colour in zip(locked, chance.sample(COLOURS, size.locks), strict=True)}
    doors = tuple(Door(parent, room, keys.get(room)) for room, parent in parents.items())
    containers = {name: chance.choice(rooms) for name in chance.sample(CONTAINERS, size.containers)}

    def place(within: list[str]) -> str:
        """A room, or rather a container in one."""
        inside = [container for container, room in containers.items() if room in within]
        return chance.choice(inside) if inside and chance.random() < 0.7 else chance.choice(within)

    things = {}
    for number, room in enumerate(locked):
        # A key lies where one gets with those of the doors before it.
        things[keys[room]] = place([each for each in rooms if not _behind(each, locked[number:], parents)])
    named = chance.sample(THINGS, size.goals + size.others)
    goals = tuple(Goal(thing, chance.choice(list(containers))) for thing in named[: size.goals])
    for thing in named[size.goals :]:
        things[thing] = place(rooms)
    for goal in goals:
        where = place(rooms)
        things[goal.thing] = where if where != goal.container else rooms[0]
    return House(doors, containers, goals, State(rooms[0], frozenset(things.items())))


def _behind(room: str, locked: list[str], parents: dict[str, str]) -> bool:
    """Whether the way from the first room leads through one of the locked doors."""
    while room in parents:
        if room in locked:
            return True
        room = parents[room]
    return False
