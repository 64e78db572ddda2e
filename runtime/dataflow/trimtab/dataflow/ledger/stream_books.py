"""One policy's trajectories: what is on its way, what is complete, what became of the rest."""

from __future__ import annotations

from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.groups import Group, PartialGroup
from trimtab.dataflow.ledger.settled import SettledGroups
from trimtab.dataflow.ledger.task_ids import task_number


class StreamBooks:
    """Changed by the ledger alone."""

    def __init__(self, policy: str, *, groups_per_task: int) -> None:
        self.policy = policy
        self.groups_per_task = groups_per_task
        """Roles of the workflow that the policy speaks in."""
        self.arriving: dict[str, PartialGroup] = {}
        self.unfiltered: dict[str, Group] = {}
        """Complete groups that the filters have not been asked about, in the order in which they arrived."""
        self.ended = SettledGroups()
        """Complete or failed: whatever arrives for them again is a duplicate, for ever."""
        self.finished_groups = 0
        """Groups that have come to their end, well or badly: what is issued and not in here is running."""
        self.written_off_groups = 0
        """Those of tasks that were given up before they came to an end, or of which nothing is known."""
        self.produced_tokens = 0
        self.filtered_groups = 0
        self.failed_groups = 0
        self.empty_groups = 0
        """Complete, and no episode of theirs has a row of the policy's."""
        self.duplicates = 0

    def running(self, issued: int) -> int:
        """Groups asked for with so many tasks and not at their end."""
        return issued * self.groups_per_task - self.finished_groups - self.written_off_groups

    def write_off(self, issued: int) -> None:
        """Tasks before this one come to nothing any more. What comes of them is too late."""
        later = self.ended.settle_below(issued)
        self.arriving = {name: group for name, group in self.arriving.items() if task_number(name) >= issued}
        self.unfiltered = {name: group for name, group in self.unfiltered.items() if task_number(name) >= issued}
        self.written_off_groups = issued * self.groups_per_task - (self.finished_groups - later)

    @property
    def settled_tasks(self) -> int:
        """All groups of tasks below this one have come to their end."""
        return self.ended.floor(roles=self.groups_per_task)

    def end(self, group_id: str) -> Group | Arrival:
        """The group whose last episode is closed; FAILED or EMPTY where there is nothing to train."""
        partial = self.arriving.pop(group_id)
        self.finished_groups += 1
        self.produced_tokens += partial.tokens
        self.ended.add((group_id,))
        group = Group.of(group_id, partial, policy=self.policy)
        if group is Arrival.FAILED:
            self.failed_groups += 1
        elif group is Arrival.EMPTY:
            self.empty_groups += 1
        return group

    def begun_tasks(self) -> set[str]:
        """Ids of the tasks of which some samples have come."""
        return {group_id.partition(".")[0] for group_id in self.arriving}
