"""Groups that a trainer has had and may have again. Only what headers say is held; the tokens stay in the stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trimtab.dataflow.ledger.groups import Group


@dataclass(frozen=True)
class UsedGroup:
    """A group and what it was used for."""

    group: Group
    uses: int
    last_step: int


class ReplayPool:
    """In the order of their first use. Which groups come in and go is recorded, so that it is the same after a restart,
    whatever the manifest says by then.
    """

    def __init__(self) -> None:
        self._used: dict[str, UsedGroup] = {}

    def __len__(self) -> int:
        return len(self._used)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._used

    def __iter__(self) -> Iterator[UsedGroup]:
        return iter(self._used.values())

    def used(self, group_id: str) -> UsedGroup:
        return self._used[group_id]

    def put(self, used: UsedGroup) -> None:
        self._used[used.group.group_id] = used

    def use_again(self, group_id: str, *, step: int) -> UsedGroup:
        """Count one more use; returns the group as it was before."""
        before = self._used[group_id]
        self._used[group_id] = UsedGroup(before.group, before.uses + 1, step)
        return before

    def retire(self, group_ids: Iterable[str]) -> None:
        for group_id in group_ids:
            del self._used[group_id]
