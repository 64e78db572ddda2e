"""One policy's line of steps: what has arrived for it, what it was granted, how far its trainer is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trimtab.dataflow.ledger.buffer import Buffer
from trimtab.dataflow.ledger.groups import Group, PartialGroup, mean_reward
from trimtab.dataflow.ledger.records import GroupsSifted, StepGranted, StepTimed
from trimtab.dataflow.ledger.settled import SettledGroups


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Of one rank in one step."""

    wait_s: float
    step_s: float


class PolicyBooks:
    """Changed by the ledger alone."""

    def __init__(self, name: str, *, groups_per_task: int, window_steps: int) -> None:
        self.name = name
        self.groups_per_task = groups_per_task
        """Roles of the workflow that this policy speaks in."""
        self.arriving: dict[str, PartialGroup] = {}
        self.unsifted: dict[str, Group] = {}
        """Complete groups that the filters have not been asked about, in the order in which they arrived."""
        self.buffer = Buffer()
        self.settled = SettledGroups()
        self.granted: dict[int, tuple[Group, ...]] = {}
        """By step, from the first that is not durable."""
        self.next_step = 0
        self.durable_steps = 0
        self.trained_steps = 0
        """The trainer's version as far as we know."""
        self.accepted_groups = 0
        """Ever complete, and neither left out by a filter nor given up."""
        self.finished_groups = 0
        """Groups that have come to their end, well or badly: what is issued and not in here is running."""
        self.produced_tokens = 0
        self.consumed_tokens = 0
        self.dropped_groups = 0
        self.filtered_groups = 0
        self.failed_groups = 0
        self.duplicates = 0
        self.attempt = -1
        self.world_size = 0
        self.finished: str | None = None
        self.rewards: deque[float] = deque(maxlen=window_steps)
        """Mean reward of the latest granted steps."""
        self._times: dict[int, dict[int, StepTimes]] = {}
        # A report on a window is written a little after its end.
        self._times_kept = 2 * window_steps + 16

    def grant(self, record: StepGranted) -> None:
        groups = self.buffer.take(record.groups)
        self.next_step += 1
        self.granted[record.step] = groups
        self.rewards.append(mean_reward(groups))
        self.consumed_tokens += sum(group.tokens for group in groups)
        self.settled.add(record.groups)

    def sift(self, record: GroupsSifted) -> None:
        for group_id in record.kept:
            self.buffer.add(replace(self.unsifted.pop(group_id), sifted=True))
        for reduced in record.reduced:
            self.buffer.add(self.unsifted.pop(reduced.group_id).reduced_to(reduced.indices))
        for group_id in record.left_out:
            del self.unsifted[group_id]
        self.settled.add(record.left_out)
        self.filtered_groups += len(record.left_out)
        self.accepted_groups -= len(record.left_out)

    def surface(self, group_ids: Iterable[str]) -> None:
        """Groups on which no filter was asked go on as they are: the manifest has none, or had none at the time."""
        for group_id in group_ids:
            if group_id in self.unsifted:
                self.buffer.add(self.unsifted.pop(group_id))

    def drop(self, group_ids: Sequence[str]) -> None:
        """Give up groups that wait in the buffer."""
        self.buffer.take(tuple(group_ids))
        self.settled.add(group_ids)
        self.dropped_groups += len(group_ids)
        self.accepted_groups -= len(group_ids)

    def trained(self, step: int) -> None:
        self.trained_steps = max(self.trained_steps, step + 1)

    def durable(self, step: int) -> None:
        self.trained(step)
        self.durable_steps = max(self.durable_steps, step + 1)
        for old in [granted for granted in self.granted if granted < self.durable_steps]:
            del self.granted[old]

    def time(self, record: StepTimed) -> None:
        self._times.setdefault(record.step, {})[record.rank] = StepTimes(
            wait_s=record.wait_seconds, step_s=record.step_seconds
        )
        self.trained(record.step)
        while (oldest := next(iter(self._times))) < self.trained_steps - self._times_kept:
            del self._times[oldest]

    def wants_time(self, step: int, *, rank: int) -> bool:
        return step >= self.trained_steps - self._times_kept and rank not in self._times.get(step, {})

    def waiting(self, *, first_step: int, last_step: int) -> tuple[float, float]:
        """Seconds waited and seconds in all, summed over the ranks and steps of a recent window."""
        times = [rank for step in range(first_step, last_step + 1) for rank in self._times.get(step, {}).values()]
        return sum(time.wait_s for time in times), sum(time.step_s for time in times)
