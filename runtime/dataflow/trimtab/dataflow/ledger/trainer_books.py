"""One trainer's line of steps: what waits for it, what it was granted, how far it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from trimtab.dataflow.ledger.buffer import Buffer
from trimtab.dataflow.ledger.groups import Allotment, Group, mean_reward
from trimtab.dataflow.ledger.records import StepGranted, StepTimed
from trimtab.dataflow.ledger.replay_pool import ReplayPool, UsedGroup
from trimtab.dataflow.ledger.step_times import StepTime, StepTimes
from trimtab.dataflow.ledger.task_ids import task_number

Portions = tuple[tuple[Allotment, ...], ...]


class TrainerBooks:
    """Changed by the ledger alone."""

    def __init__(self, policy: str, *, groups_per_step: int, window_steps: int) -> None:
        self.policy = policy
        self.groups_per_step = groups_per_step
        self.buffers: dict[str, Buffer] = {}
        """By the stream they come from."""
        self.labels: dict[str, frozenset[str]] = {}
        """By stream, of which of its groups it takes no others: a stream that is not in here it takes whole."""
        self.pool = ReplayPool()
        self.granted: dict[int, Portions] = {}
        """By step, from the first that is not durable. The newest may not have all its portions yet."""
        self.next_step = 0
        """The first that has not all its groups."""
        self.durable_steps = 0
        self.trained_steps = 0
        """The trainer's version as far as we know."""
        self.accepted_groups = 0
        """Ever come to the buffers and not given up."""
        self.fresh_groups = 0
        """Ever granted for the first time."""
        self.consumed_samples = 0
        """Episodes, however many rows they have."""
        self.replayed_samples = 0
        """Of those consumed, the ones that were not consumed for the first time."""
        self.consumed_tokens = 0
        self.dropped_groups = 0
        self.attempt = -1
        self.world_size = 0
        self.finished: str | None = None
        self.rewards: deque[float] = deque(maxlen=window_steps)
        """Mean reward of the latest granted steps."""
        self.times = StepTimes(window_steps=window_steps)

    @property
    def buffered(self) -> int:
        return sum(map(len, self.buffers.values()))

    @property
    def filled(self) -> int:
        """Groups that the next step has already."""
        return sum(map(len, self.granted.get(self.next_step, ())))

    def allotments(self, step: int) -> tuple[Allotment, ...]:
        return tuple(allotment for portion in self.granted.get(step, ()) for allotment in portion)

    def route(self, streams: Iterable[str], labels: Mapping[str, Sequence[str]]) -> None:
        """Take groups from these streams. What waits from others is given up."""
        self.labels = {stream: frozenset(wanted) for stream, wanted in labels.items()}
        self.buffers = {stream: self.buffers.get(stream, Buffer()) for stream in streams}
        for buffer in self.buffers.values():
            for group in [group for group in buffer if not self.takes(group)]:
                buffer.pop(group.group_id)

    def takes(self, group: Group) -> bool:
        """Of a stream that it takes."""
        return group.policy not in self.labels or group.label in self.labels[group.policy]

    def add(self, group: Group) -> None:
        self.buffers[group.policy].add(group)
        self.accepted_groups += 1

    def waiting_group(self, group_id: str) -> Group | None:
        for buffer in self.buffers.values():
            if group_id in buffer:
                return buffer.group(group_id)
        return None

    def grant(self, record: StepGranted) -> None:
        fresh = [Allotment(self._take(group_id), 0) for group_id in record.groups]
        replayed = [self.pool.use_again(group_id, step=record.step) for group_id in record.replayed]
        portion = (*fresh, *(Allotment(used.group, used.uses) for used in replayed))
        if record.pooled:
            for allotment in fresh:
                self.pool.put(UsedGroup(allotment.group, 1, record.step))
        self.pool.retire(record.retired)
        self.granted[record.step] = (*self.granted.get(record.step, ()), portion)
        self.fresh_groups += len(fresh)
        self.replayed_samples += sum(used.group.episodes for used in replayed)
        self.consumed_samples += sum(allotment.group.episodes for allotment in portion)
        self.consumed_tokens += sum(allotment.group.tokens for allotment in portion)
        if record.last:
            self.rewards.append(mean_reward(self.allotments(record.step)))
            self.next_step += 1

    def drop(self, group_ids: Sequence[str]) -> None:
        """Give up groups that wait."""
        for group_id in group_ids:
            self._take(group_id)
        self.dropped_groups += len(group_ids)
        self.accepted_groups -= len(group_ids)

    def give_up_waiting(self, *, issued: int) -> None:
        """Groups of tasks before this one are not taken any more."""
        for buffer in self.buffers.values():
            for group_id in [group.group_id for group in buffer if task_number(group.group_id) < issued]:
                buffer.pop(group_id)
                self.accepted_groups -= 1

    def anchor(self, step: int) -> None:
        """Go on with this step: those before it are durable, and those from it on count as never granted."""
        self.next_step = self.durable_steps = self.trained_steps = step
        self.granted = {}
        self.pool = ReplayPool()
        self.times.by_step = {}
        self.finished = None

    def finish(self, reason: str) -> None:
        self.finished = reason
        self.accepted_groups -= self.buffered
        self.buffers = {stream: Buffer() for stream in self.buffers}
        self.pool = ReplayPool()

    def trained(self, step: int) -> None:
        self.trained_steps = max(self.trained_steps, step + 1)

    def durable(self, step: int) -> None:
        self.trained(step)
        self.durable_steps = max(self.durable_steps, step + 1)
        for old in [granted for granted in self.granted if granted < self.durable_steps]:
            del self.granted[old]

    def time(self, record: StepTimed) -> None:
        self.trained(record.step)
        time = StepTime(ranks=record.ranks, wait_s=record.wait_seconds, step_s=record.step_seconds)
        self.times.add(record.step, time, trained_steps=self.trained_steps)

    def wants_time(self, step: int) -> bool:
        return self.times.wanted(step, trained_steps=self.trained_steps)

    @property
    def timed_steps(self) -> int:
        """Steps whose times are here, or will not come: the ranks have told of the last but one or never will."""
        newest = self.trained_steps - 1
        return self.trained_steps if newest in self.times.by_step else max(0, newest)

    def _take(self, group_id: str) -> Group:
        return next(buffer for buffer in self.buffers.values() if group_id in buffer).pop(group_id)


def is_out_of_reach(versions: Mapping[str, int], trainers: Mapping[str, TrainerBooks]) -> bool:
    """Whether some version cannot come without samples that nobody has yet: it was there, and is lost."""
    return any(version > trainers[policy].next_step for policy, version in versions.items())
