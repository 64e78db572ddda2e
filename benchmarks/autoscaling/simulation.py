"""Runs a workload event by event: a trainer, replicas that share their speed among what they work on, and between them
a buffer and an admission rule as the dataflow has them. A controller looks on and sets the number of replicas.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from benchmarks.autoscaling.workload import Workload

WINDOW_STEPS = 10


@dataclass(slots=True)
class Group:
    tokens: float
    work: float
    accepted: bool
    version: int = 0


class Stage(IntEnum):
    STARTING = 0
    READY = 1
    DRAINING = 2
    GONE = 3


@dataclass(slots=True, eq=False)
class Replica:
    number: int
    created_at: float
    ready_at: float
    stage: Stage = Stage.STARTING
    gone_at: float | None = None
    progress: float = 0.0
    """Work done for each of its groups since it began."""
    progress_at: float = 0.0
    running: list[tuple[float, int, Group]] = field(default_factory=list)
    """A heap by the progress at which a group ends."""
    plan: int = 0
    """Outdates events that were planned before its load changed."""
    finished_groups: int = 0


@dataclass(frozen=True, kw_only=True)
class WindowFigures:
    """What the balance report of a window is made from."""

    first_step: int
    last_step: int
    seconds: float
    wait_s: float
    produced_groups: int
    produced_tokens: float
    accepted_groups: int
    consumed_groups: int
    stale_groups: int
    buffered_groups: int
    finished: dict[int, int]
    """Groups finished by replica."""
    at: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    wall_h: float
    device_h: float
    wait: float
    changes: int
    sizes: tuple[tuple[float, int], ...]
    """Hours and the number of replicas from then on."""
    waits: tuple[tuple[float, float], ...]
    """Hours and the waiting fraction of the window that ended then."""
    stale_share: float
    staleness: float
    """Mean age of what was trained, in versions."""

    @property
    def product(self) -> float:
        return self.device_h * self.wall_h


class Controller(Protocol):
    def reported(self, world: World, window: WindowFigures) -> None: ...

    def ticked(self, world: World) -> None: ...

    def next_tick(self) -> float | None: ...


class World:
    def __init__(self, workload: Workload, controller: Controller) -> None:
        self.workload = workload
        self.now = 0.0
        self.replicas: list[Replica] = []
        self.desired = workload.first_replicas
        self._controller = controller
        # Sources of their own, so that all contenders meet the same groups, the same steps and the same pods.
        self._groups = random.Random(f"{workload.seed} groups")
        self._steps = random.Random(f"{workload.seed} steps")
        self._starts = random.Random(f"{workload.seed} starts")
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count()
        self._queue: deque[Group] = deque()
        self._under_way = 0
        self._buffer: list[tuple[int, int, Group]] = []
        self._trained = 0
        self._training = False
        self._waiting_since = 0.0
        self._wait_s = 0.0
        self._all_wait_s = 0.0
        self._produced = self._accepted = self._consumed = self._stale = 0
        self._tokens = 0.0
        self._ages = 0.0
        self._since = (0.0, 0, 0, 0, 0, 0.0)
        self._sizes: list[tuple[float, int]] = []
        self._waits: list[tuple[float, float]] = []
        self._changes = 0
        self._tick_at: float | None = None

    def run(self) -> Outcome:
        self._resize()
        self._admit()
        self._plan_tick()
        total = self.workload.steps
        while self._trained < total:
            at, _, event = heapq.heappop(self._events)
            self.now = at
            event()
        for replica in self.replicas:
            if replica.gone_at is None:
                replica.gone_at = self.now
        rollout_s = sum((replica.gone_at or self.now) - replica.created_at for replica in self.replicas)
        return Outcome(
            wall_h=self.now / 3600,
            device_h=(rollout_s + self.now * self.workload.trainer_devices) / 3600,
            wait=self._all_wait_s / self.now,
            changes=self._changes,
            sizes=tuple(self._sizes),
            waits=tuple(self._waits),
            stale_share=self._stale / max(1, self._accepted),
            staleness=self._ages / max(1, self._consumed),
        )

    def set_size(self, replicas: int) -> None:
        if replicas != self.desired:
            self.desired = replicas
            self._changes += 1
            self._resize()

    @property
    def living(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.stage in (Stage.STARTING, Stage.READY)]

    @property
    def ready(self) -> int:
        return sum(replica.stage is Stage.READY for replica in self.replicas)

    @property
    def utilisation(self) -> float:
        """Share of the slots of ready replicas that are in use."""
        ready = [replica for replica in self.replicas if replica.stage is Stage.READY]
        return sum(len(replica.running) for replica in ready) / (len(ready) * self.workload.slots) if ready else 0.0

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _resize(self) -> None:
        living = self.living
        for _ in range(self.desired - len(living)):
            spread = self.workload.startup_spread
            startup = self.workload.startup_s * math.exp(self._starts.gauss(-spread * spread / 2, spread))
            replica = Replica(number=next(self._numbers), created_at=self.now, ready_at=self.now + startup)
            self.replicas.append(replica)
            self._at(replica.ready_at, lambda replica=replica: self._started(replica))  # type: ignore[misc]
        # Those that do not work yet first, then those with the least to lose.
        victims = sorted(living, key=lambda replica: (replica.stage, len(replica.running), -replica.number))
        for replica in victims[: max(0, len(living) - self.desired)]:
            self._drain(replica)
        self._sizes.append((self.now / 3600, self.desired))

    def _started(self, replica: Replica) -> None:
        if replica.stage is Stage.STARTING:
            replica.stage = Stage.READY
            replica.progress_at = self.now
            self._fill(replica)
            self._tick()

    def _drain(self, replica: Replica) -> None:
        if not replica.running:
            self._leave(replica)
            return
        replica.stage = Stage.DRAINING
        self._at(self.now + self.workload.drain_s, lambda: self._leave(replica))

    def _leave(self, replica: Replica) -> None:
        if replica.stage is Stage.GONE:
            return
        replica.stage = Stage.GONE
        replica.gone_at = self.now
        replica.plan += 1
        self._queue.extendleft(group for _, _, group in replica.running)
        replica.running.clear()
        self._fill_all()

    def _advance(self, replica: Replica) -> None:
        busy = len(replica.running)
        if busy:
            rate = self.workload.speed(busy) / (busy * self.workload.group_size)
            replica.progress += rate * (self.now - replica.progress_at)
        replica.progress_at = self.now

    def _expect(self, replica: Replica) -> None:
        """Plans the end of the group that ends next."""
        replica.plan += 1
        if not replica.running:
            return
        busy = len(replica.running)
        rate = self.workload.speed(busy) / (busy * self.workload.group_size)
        left = max(0.0, replica.running[0][0] - replica.progress)
        plan = replica.plan
        self._at(self.now + left / rate, lambda: self._finished(replica, plan))

    def _fill(self, replica: Replica) -> None:
        self._advance(replica)
        while self._queue and len(replica.running) < self.workload.slots:
            self._take(replica)
        self._expect(replica)

    def _take(self, replica: Replica) -> None:
        group = self._queue.popleft()
        group.version = self._trained
        heapq.heappush(replica.running, (replica.progress + group.work, next(self._order), group))

    def _fill_all(self) -> None:
        """Tasks go one by one to the worker with most room, as when all pull."""
        if not self._queue:
            return
        room = [
            (len(replica.running), replica.number, replica)
            for replica in self.replicas
            if replica.stage is Stage.READY and len(replica.running) < self.workload.slots
        ]
        heapq.heapify(room)
        touched: dict[int, Replica] = {}
        while self._queue and room:
            busy, number, replica = heapq.heappop(room)
            if number not in touched:
                self._advance(replica)
                touched[number] = replica
            self._take(replica)
            if busy + 1 < self.workload.slots:
                heapq.heappush(room, (busy + 1, number, replica))
        for replica in touched.values():
            self._expect(replica)

    def _finished(self, replica: Replica, plan: int) -> None:
        if plan != replica.plan:
            return
        self._advance(replica)
        _, order, group = heapq.heappop(replica.running)
        replica.finished_groups += 1
        self._under_way -= 1
        self._produced += 1
        self._tokens += group.tokens * self.workload.group_size
        if group.accepted:
            self._accepted += 1
            heapq.heappush(self._buffer, (group.version, order, group))
        if replica.stage is Stage.READY:
            while self._queue and len(replica.running) < self.workload.slots:
                self._take(replica)
        self._expect(replica)
        if replica.stage is Stage.DRAINING and not replica.running:
            self._leave(replica)
        self._admit()
        self._train()

    def _admit(self) -> None:
        """capacity = (maxStaleness + version + 1) batches, less what is granted, waits and is under way."""
        workload = self.workload
        ahead = workload.max_staleness + (0 if self._training else 1)
        wanted = ahead * workload.batch_groups - len(self._buffer)
        missing = math.ceil(max(0, wanted) / workload.accepted) - self._under_way
        if missing <= 0:
            return
        mean = workload.lengths[min(self._trained, workload.steps - 1)]
        spread = workload.length_spread
        for _ in range(missing):
            tokens = mean * math.exp(self._groups.gauss(-spread * spread / 2, spread))
            accepted = self._groups.random() < workload.accepted
            self._queue.append(Group(tokens=tokens, work=workload.work(tokens), accepted=accepted))
        self._under_way += missing
        self._fill_all()

    def _train(self) -> None:
        workload = self.workload
        if self._training:
            return
        while self._buffer and self._buffer[0][0] < self._trained - workload.max_staleness:
            heapq.heappop(self._buffer)
            self._stale += 1
        if len(self._buffer) < workload.batch_groups:
            return
        for _ in range(workload.batch_groups):
            self._ages += self._trained - heapq.heappop(self._buffer)[0]
        self._consumed += workload.batch_groups
        self._training = True
        waited = self.now - self._waiting_since
        self._wait_s += waited
        self._all_wait_s += waited
        spread = workload.step_spread
        seconds = workload.step_s(self._trained) * math.exp(self._steps.gauss(-spread * spread / 2, spread))
        self._at(self.now + seconds, self._stepped)

    def _stepped(self) -> None:
        self._training = False
        self._trained += 1
        self._waiting_since = self.now
        if self._trained % WINDOW_STEPS == 0:
            self._report()
        self._admit()
        self._train()

    def _report(self) -> None:
        since, produced, accepted, consumed, stale, tokens = self._since
        window = WindowFigures(
            first_step=self._trained - WINDOW_STEPS,
            last_step=self._trained - 1,
            seconds=self.now - since,
            wait_s=self._wait_s,
            produced_groups=self._produced - produced,
            produced_tokens=self._tokens - tokens,
            accepted_groups=self._accepted - accepted,
            consumed_groups=self._consumed - consumed,
            stale_groups=self._stale - stale,
            buffered_groups=len(self._buffer),
            finished={replica.number: replica.finished_groups for replica in self.replicas},
            at=self.now,
        )
        self._since = (self.now, self._produced, self._accepted, self._consumed, self._stale, self._tokens)
        self._waits.append((self.now / 3600, self._wait_s / max(1e-9, self.now - since)))
        self._wait_s = 0.0
        for replica in self.replicas:
            replica.finished_groups = 0
        self._controller.reported(self, window)
        self._plan_tick()

    def _tick(self) -> None:
        self._controller.ticked(self)
        self._plan_tick()

    def _plan_tick(self) -> None:
        at = self._controller.next_tick()
        if at is not None and (self._tick_at is None or self._tick_at <= self.now or at < self._tick_at):
            self._tick_at = max(at, self.now)
            self._at(self._tick_at, self._tick_due)

    def _tick_due(self) -> None:
        if self._tick_at is not None and self.now >= self._tick_at:
            self._tick_at = None
            self._tick()
