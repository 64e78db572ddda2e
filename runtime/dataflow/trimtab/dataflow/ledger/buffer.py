"""Complete groups that wait for a step, kept in the order of their deadlines."""

from __future__ import annotations

from bisect import bisect_left, insort

from trimtab.dataflow.ledger.groups import Group


class Buffer:
    """Earliest deadline first: groups whose oldest token expires first are trained first, where first-in-first-out
    would favour short samples. A question about it costs the same however many groups wait.
    """

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._order: list[tuple[int, int, str]] = []

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def group(self, group_id: str) -> Group:
        return self._groups[group_id]

    def add(self, group: Group) -> None:
        self._groups[group.group_id] = group
        insort(self._order, (group.oldest_version, group.arrival, group.group_id))

    def stale_count(self, *, step: int, max_staleness: int) -> int:
        """Groups too old for this step and any later one: the trainer's version at step s is s."""
        return bisect_left(self._order, (step - max_staleness,))

    def first(self, count: int, *, after: int = 0) -> tuple[str, ...]:
        """Ids of the groups with the earliest deadlines, leaving out as many as `after` says."""
        return tuple(group_id for _, _, group_id in self._order[after : after + count])

    def take(self, group_ids: tuple[str, ...]) -> tuple[Group, ...]:
        """Remove these groups and return them, in this order."""
        taken = tuple(self._groups.pop(group_id) for group_id in group_ids)
        self._order = [place for place in self._order if place[2] in self._groups]
        return taken
