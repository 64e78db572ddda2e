"""Groups that are complete: whatever arrives for them again is a duplicate, for ever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trimtab.dataflow.ledger.task_ids import parse_group_id


class SettledGroups:
    """By role, every task number below a floor and single ones above it: its size follows what is in flight, not the
    length of the run.
    """

    def __init__(self) -> None:
        self._floor: dict[str, int] = {}
        self._above: dict[str, set[int]] = {}
        self.below = 0
        """Groups of tasks before this one are settled, whatever their roles."""

    def __contains__(self, group_id: str) -> bool:
        place = parse_group_id(group_id)
        if place is None:
            return False
        number, role = place
        return number < self._floor.get(role, self.below) or number in self._above.get(role, ())

    def has_task(self, number: int) -> bool:
        """Whether any role's group of this task is settled."""
        return (
            number < self.below
            or any(number < floor for floor in self._floor.values())
            or any(number in above for above in self._above.values())
        )

    def has_all(self, number: int, *, roles: int) -> bool:
        """Whether the groups of so many roles of this task are settled."""
        settled = (number < self._floor.get(role, self.below) or number in above for role, above in self._above.items())
        return number < self.below or sum(settled) >= roles

    def add(self, group_ids: Iterable[str]) -> None:
        for group_id in group_ids:
            place = parse_group_id(group_id)
            if place is None:
                raise ValueError(f"{group_id!r} is no id of a group")
            number, role = place
            above = self._above.setdefault(role, set())
            above.add(number)
            floor = self._floor.get(role, self.below)
            if number < floor:
                above.remove(number)
            while floor in above:
                above.remove(floor)
                floor += 1
            self._floor[role] = floor

    def settle_below(self, number: int) -> int:
        """Settle the groups of all tasks before this one; how many of later ones are settled already."""
        self.below = max(self.below, number)
        for role, above in self._above.items():
            floor = max(self._floor.get(role, 0), self.below)
            above.difference_update([one for one in above if one < floor])
            while floor in above:
                above.remove(floor)
                floor += 1
            self._floor[role] = floor
        return self.held() + sum(floor - self.below for floor in self._floor.values())

    def floor(self, *, roles: int) -> int:
        """Of every task below it, the groups of so many roles are settled. Roles that no task has do not hold it up."""
        floors = sorted(self._floor.values(), reverse=True)
        return floors[roles - 1] if 0 < roles <= len(floors) else self.below

    def state(self) -> dict[str, tuple[int, list[int]]]:
        """By role, the floor and the numbers above it."""
        return {role: (self._floor.get(role, 0), sorted(above)) for role, above in self._above.items()}

    def restore(self, state: Mapping[str, tuple[int, list[int]]], *, below: int = 0) -> None:
        """Take back what `state` gave, and `below`."""
        self.below = below
        self._floor = {role: floor for role, (floor, _) in state.items()}
        self._above = {role: set(above) for role, (_, above) in state.items()}

    def held(self) -> int:
        """Numbers held one by one."""
        return sum(len(above) for above in self._above.values())
