"""Complete groups that wait for a step, kept in the order of their deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from trimtab.dataflow.ledger.groups import Group


class Buffer:
    """Earliest deadline first: groups whose oldest token expires first are trained first, where first-in-first-out
    would favour short samples. Among equals the first to come is first.

    Groups lie in shelves by version, of which there are about as many as versions are allowed: what it costs to add, to
    take or to ask does not depend on how many groups wait.
    """

    def __init__(self) -> None:
        self._shelves: dict[int, dict[str, Group]] = {}
        self._version: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._version)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._version

    def __iter__(self) -> Iterator[Group]:
        """Earliest deadline first."""
        return chain.from_iterable(self._shelves[version].values() for version in sorted(self._shelves))

    def group(self, group_id: str) -> Group:
        return self._shelves[self._version[group_id]][group_id]

    def add(self, group: Group) -> None:
        self._shelves.setdefault(group.oldest_version, {})[group.group_id] = group
        self._version[group.group_id] = group.oldest_version

    def pop(self, group_id: str) -> Group:
        version = self._version.pop(group_id)
        shelf = self._shelves[version]
        group = shelf.pop(group_id)
        if not shelf:
            del self._shelves[version]
        return group

    def count(self, *, not_before: int) -> int:
        """Groups that are no older than this version."""
        return sum(len(shelf) for version, shelf in self._shelves.items() if version >= not_before)

    def first(self, count: int, *, not_before: int) -> tuple[str, ...]:
        """Ids of the groups with the earliest deadlines, none older than this version."""
        shelves = (self._shelves[version] for version in sorted(self._shelves) if version >= not_before)
        return tuple(islice(chain.from_iterable(shelves), count))

    def older(self, version: int) -> tuple[str, ...]:
        """Ids of the groups that are older than this version."""
        return tuple(chain.from_iterable(self._shelves[shelf] for shelf in sorted(self._shelves) if shelf < version))
