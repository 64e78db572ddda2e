"""Who dies when: starts the processes of a job, and kills them, sends them away and lets them join at random moments.

Every part is looked at in turn, so one that takes its time to leave holds up nobody else.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from types import MappingProxyType
from typing import Protocol

from tests.support.dataflow.storm.rank import train
from tests.support.dataflow.storm.service import SERVICE, serve
from tests.support.dataflow.storm.site import RANKS, STEP_S, Site
from tests.support.dataflow.storm.stage_process import compute
from tests.support.dataflow.storm.worker import Profile, roll_out
from tests.support.template_process import TemplateProcess

_LOOK_S = 0.05
_LEAVE_DEADLINE_S = 240.0
_PATIENCE_S = 120.0
_WORKER_LIFE_S = (4.0, 25.0)
_TRAINER_LIFE_S = (6.0, 20.0)
_AWAY_S = (0.2, 3.0)
_SURVIVES_S = (0.5, 4.0)
_RECOVERIES = 10
"""How often the service may end by itself: when a record of its killed predecessor reached the server after it had
read the journal.
"""
_KILLED = (True, False, True, False, True)
"""Which ends are a SIGKILL, in turn, so that a short storm has both; the others are a SIGTERM."""

WORKERS = (
    Profile(name="worker-0", groups_per_s=50.0, lag_s=0.0),
    Profile(name="worker-1", groups_per_s=30.0, lag_s=0.1),
    Profile(name="worker-2", groups_per_s=20.0, lag_s=0.0, joins_at_s=20.0),
    Profile(name="worker-3", groups_per_s=12.0, lag_s=0.5),
    Profile(name="worker-4", groups_per_s=8.0, lag_s=0.2),
    Profile(name="worker-5", groups_per_s=4.0, lag_s=0.0, joins_at_s=45.0),
    Profile(name="worker-6", groups_per_s=2.0, lag_s=1.0),
    Profile(name="worker-7", groups_per_s=1.0, lag_s=4.0),
)
STAGE_WORKERS = ("stage-worker-0", "stage-worker-1", "stage-worker-2")


@dataclass
class Sky:
    """What all parts share."""

    site: Site
    template: TemplateProcess
    chance: random.Random
    tally: Counter[str] = field(default_factory=Counter)
    """How often what happened to whom."""
    _turns: dict[str, Iterator[bool]] = field(default_factory=lambda: defaultdict(lambda: cycle(_KILLED)))

    def kills(self, kind: str) -> bool:
        """Whether the next end among those of a kind is a kill."""
        return next(self._turns[kind])

    def between(self, bounds: tuple[float, float]) -> float:
        return self.chance.uniform(*bounds)

    def kill(self, name: str, pid: int) -> None:
        """It may have ended before, by its own SIGKILL or as it was told, and never by a failure."""
        self._check(name, self.template.end(pid))

    def gone(self, name: str, pid: int) -> bool:
        """Whether a process that was told to leave has left."""
        ending = self.template.ended(pid)
        if ending is not None:
            self._check(name, ending)
        return ending is not None

    def _check(self, name: str, ending: int) -> None:
        well = os.WIFSIGNALED(ending) and os.WTERMSIG(ending) == signal.SIGKILL
        well = well or (os.WIFEXITED(ending) and os.WEXITSTATUS(ending) == 0)
        assert well, f"{name} failed:\n{self.site.log(name)[-4000:]}"


class Part(Protocol):
    """One of those that are under fire."""

    def look(self, now: float) -> None: ...

    def stop(self) -> None: ...


class Service:
    """Killed at given moments and started at once; started again also when it has ended to recover."""

    def __init__(self, sky: Sky, kills_at: list[float]) -> None:
        self._sky = sky
        self._kills_at = sorted(kills_at)
        self._pid = sky.template.start(serve, sky.site)

    def look(self, now: float) -> None:
        if self._sky.template.ended(self._pid) is not None:
            self._sky.tally["service ended itself"] += 1
            often = self._sky.tally["service ended itself"] > _RECOVERIES
            assert not often, f"the service ends again and again:\n{self._sky.site.log(SERVICE)[-4000:]}"
        elif self._kills_at and now >= self._kills_at[0]:
            self._kills_at.pop(0)
            self._sky.template.end(self._pid)
            self._sky.tally["service killed"] += 1
        else:
            return
        self._pid = self._sky.template.start(serve, self._sky.site)

    def stop(self) -> None:
        self._sky.kill(SERVICE, self._pid)


class Worker:
    """Killed and started at once, or sent away and back after a while."""

    def __init__(self, sky: Sky, kind: str, name: str, begin: Callable[[int], int], *, joins_at: float) -> None:
        """`begin` starts its process, for the so-manieth time."""
        self._sky = sky
        self._kind = kind
        self._name = name
        self._begin = begin
        self._pid: int | None = None
        self._leaving = False
        self._life = 0
        self._due = joins_at

    def look(self, now: float) -> None:
        if self._pid is None:
            if now >= self._due:
                self._start(now)
        elif self._leaving:
            if self._sky.gone(self._name, self._pid):
                self._pid = None
                self._due = now + self._sky.between(_AWAY_S)
        elif now >= self._due and self._sky.kills(self._kind):
            self._sky.kill(self._name, self._pid)
            self._sky.tally[f"{self._kind} killed"] += 1
            self._start(now)
        elif now >= self._due:
            self.leave()
            self._sky.tally[f"{self._kind} left"] += 1

    def leave(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGTERM)
            self._leaving = True

    def left(self) -> bool:
        if self._pid is not None and self._sky.gone(self._name, self._pid):
            self._pid = None
        return self._pid is None

    def stop(self) -> None:
        if self._pid is not None:
            self._sky.kill(self._name, self._pid)

    def _start(self, now: float) -> None:
        self._life += 1
        self._leaving = False
        self._pid = self._begin(self._life)
        self._due = now + self._sky.between(_WORKER_LIFE_S)


class Trainer:
    """The ranks of a policy. When one is killed, all start again as the next attempt, and those that were left of the
    old one live on beside it for a moment.
    """

    def __init__(self, sky: Sky, policy: str, *, now: float) -> None:
        self._sky = sky
        self._policy = policy
        self._attempt = -1
        self._ranks: dict[str, int] = {}
        self._survivors: dict[str, int] = {}
        self._survivors_due = 0.0
        self._leaving = False
        self._spared = False
        self._due = 0.0
        self._start(now)

    def look(self, now: float) -> None:
        if self._survivors and now >= self._survivors_due:
            self._bury()
        if self._leaving:
            for name, pid in list(self._ranks.items()):
                if self._sky.gone(name, pid):
                    del self._ranks[name]
            if not self._ranks:
                self._start(now)
        elif now < self._due or self._spared:
            return
        elif self._sky.kills("trainer"):
            victim = self._sky.chance.choice(sorted(self._ranks))
            self._sky.kill(victim, self._ranks.pop(victim))
            self._sky.tally["rank killed"] += 1
            self._bury()
            self._survivors, self._survivors_due = self._ranks, now + self._sky.between(_SURVIVES_S)
            self._start(now)
        else:
            for pid in self._ranks.values():
                os.kill(pid, signal.SIGTERM)
            self._leaving = True
            self._sky.tally["trainer left"] += 1

    def spare(self) -> None:
        """Nothing more happens to it, except that what has begun is ended."""
        self._spared = True

    def stop(self) -> None:
        self._bury()
        for name, pid in self._ranks.items():
            self._sky.kill(name, pid)

    def _bury(self) -> None:
        for name, pid in self._survivors.items():
            self._sky.kill(name, pid)
        self._survivors = {}

    def _start(self, now: float) -> None:
        self._attempt += 1
        self._leaving = False
        self._ranks = {
            f"{self._policy}-{rank}": self._sky.template.start(train, self._sky.site, self._policy, rank, self._attempt)
            for rank in range(RANKS)
        }
        self._due = now + self._sky.between(_TRAINER_LIFE_S)


def _roll_out(sky: Sky, profile: Profile, life: int) -> int:
    return sky.template.start(roll_out, sky.site, profile, life)


def _compute(sky: Sky, name: str, life: int) -> int:
    return sky.template.start(compute, sky.site, name, life)


class Storm:
    """All parts of one job, and the time they have."""

    def __init__(self, sky: Sky, *, seconds: float, service_kills: int) -> None:
        now = time.monotonic()
        self._sky = sky
        self._end = now + seconds
        # The first moments and the last belong to everybody: a kill after the end would not count.
        kills_at = [now + sky.chance.uniform(2.0, seconds - 2.0) for _ in range(service_kills)]
        self._service = Service(sky, kills_at)
        self._trainers = [Trainer(sky, policy, now=now) for policy in STEP_S]
        self._workers = [
            Worker(sky, "worker", one.name, partial(_roll_out, sky, one), joins_at=now + one.joins_at_s)
            for one in WORKERS
        ]
        self._stages = [
            Worker(sky, "stage worker", name, partial(_compute, sky, name), joins_at=now)
            for name in (STAGE_WORKERS if sky.site.stages else ())
        ]

    @property
    def _parts(self) -> tuple[Part, ...]:
        return (self._service, *self._trainers, *self._workers, *self._stages)

    def rage(self, at_least: Mapping[str, int] = MappingProxyType({})) -> None:
        """For as long as it is to last, and on a busy machine on until this has happened so often."""
        while (now := time.monotonic()) < self._end or (
            now < self._end + _PATIENCE_S and any(self._sky.tally[what] < times for what, times in at_least.items())
        ):
            for part in self._parts:
                part.look(now)
            time.sleep(_LOOK_S)

    def calm(self) -> None:
        """The workers leave, and everybody else is let alone."""
        for worker in self._workers:
            worker.leave()
        for trainer in self._trainers:
            trainer.spare()
        staying = self._workers
        end = time.monotonic() + _LEAVE_DEADLINE_S
        while staying := [worker for worker in staying if not worker.left()]:
            assert time.monotonic() < end, "workers do not leave when told to"
            self.tend()
            time.sleep(_LOOK_S)

    def tend(self) -> None:
        """Look after the service, the stage workers and the trainers in the calm."""
        now = time.monotonic()
        self._service.look(now)
        for worker in self._stages:
            worker.look(now)
        for trainer in self._trainers:
            trainer.look(now)

    def stop(self) -> None:
        for part in self._parts:
            part.stop()
