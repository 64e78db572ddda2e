"""Reports, windows and fleets for the tests, and a small plant that answers to decisions: samples are made at the speed
of the ready replicas, wait in a bounded buffer, and are taken at the trainer's pace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from trimtab.api.autoscaling import Autoscaling
from trimtab.fabric.wire.balance import BalanceReport, Branch, Instance, Volume
from trimtab.fabric.wire.member import State
from trimtab.operator.autoscale.decide import Decision, decide
from trimtab.operator.autoscale.fleet import Fleet, Pool
from trimtab.operator.autoscale.history import History, restored
from trimtab.operator.autoscale.windows import Window

NOW = 1_000_000.0


def fleet(*pools: Pool) -> Fleet:
    return Fleet(pools=pools)


def home(desired: int, *, ready: int | None = None, name: str = "home", **fields: Any) -> Pool:
    return Pool(name=name, desired=desired, ready=desired if ready is None else ready, **fields)


def auto(**fields: Any) -> Autoscaling:
    return Autoscaling.model_validate({"mode": "Auto", "min_replicas": 1, "max_replicas": 20} | fields)


def window(
    *,
    wait: float = 0.0,
    accepted: int = 1000,
    consumed: int = 1000,
    ready: float = 8,
    busy: float | None = 1.0,
    busy_before: float | None = 1.0,
    buffered: int | None = 0,
    tokens: float = 100.0,
    settled: bool = True,
    seconds: float = 100.0,
    at: float = NOW,
) -> Window:
    return Window(
        policy="solver",
        at=at,
        seconds=seconds,
        steps=10,
        settled=settled,
        wait=wait,
        accepted=accepted,
        consumed=consumed,
        tokens=tokens,
        buffered=buffered,
        room=900,
        busy=busy,
        busy_before=busy_before,
        ready={"home": ready},
        speeds={},
    )


def report(
    *,
    wait: float = 0.0,
    accepted: int = 1000,
    consumed: int = 1000,
    replayed: int = 0,
    pools: dict[str, int] | None = None,
    in_flight: int = 8,
    buffered: int | None = 0,
    policy: str = "solver",
    first_step: int = 10,
    seconds: float = 100.0,
    at: float = NOW,
) -> BalanceReport:
    instances = tuple(
        Instance(
            member_id=f"{pool}-{number}",
            pool=pool,
            state=State.READY,
            samples_per_second=1.0,
            in_flight=in_flight,
            capacity=8,
        )
        for pool, count in ({"home": 8} if pools is None else pools).items()
        for number in range(count)
    )
    return BalanceReport(
        job="job",
        policy=policy,
        version=first_step + 10,
        first_step=first_step,
        last_step=first_step + 9,
        wall_seconds=seconds,
        wait_seconds=wait * seconds,
        step_seconds=seconds,
        wait_fraction=wait,
        produced=Volume(samples=accepted, tokens=100 * accepted),
        accepted=Volume(samples=accepted),
        consumed=Volume(samples=consumed),
        replayed=replayed,
        buffered=buffered,
        room=900,
        instances=instances,
        maintainer="ThreeZone",
        branch=Branch.HOLD,
        current=len(instances),
        target=len(instances),
        at=at,
    )


@dataclass
class Plant:
    """A job of one policy: ten steps of 100 samples in a window, which take `window_s` when nobody waits."""

    need: float
    """Replicas that keep pace."""
    config: Autoscaling
    size: int
    window_s: float = 300.0
    buffered: float = 0.0
    step: int = 0
    now: float = NOW
    history: History = field(default_factory=lambda: restored(None, now=NOW))
    sizes: list[int] = field(default_factory=list)
    """The size at the end of each window."""
    changes: list[tuple[float, int, int]] = field(default_factory=list)
    last: BalanceReport | None = None
    requeue_at: float = NOW

    def windows(self, count: int) -> Sequence[int]:
        for _ in range(count):
            self._window()
            self.sizes.append(self.size)
        return self.sizes

    def _window(self) -> None:
        taken, made, waited, busy = 1000.0, 0.0, 0.0, False
        start = self.now
        for _ in range(10):
            step_s = self.window_s / 10
            could = 100.0 * self.size / self.need
            room = 800.0 - self.buffered + 100.0
            busy = could <= room
            produced = min(could, room)
            if self.buffered + produced < 100.0:
                more = (100.0 - self.buffered - produced) / could
                waited += more * step_s
                step_s *= 1 + more
                produced = 100.0 - self.buffered
            self.buffered += produced - 100.0
            made += produced
            self._pass(step_s)
        seconds = self.now - start
        self.last = report(
            wait=waited / seconds,
            accepted=round(made),
            consumed=round(taken),
            pools={"home": self.size},
            in_flight=8 if busy else 4,
            buffered=round(self.buffered),
            first_step=self.step,
            seconds=seconds,
            at=self.now,
        )
        self.step += 10
        self.decide()

    def _pass(self, seconds: float) -> None:
        """As in the operator, without a report or a change only the time that a decision named brings the next one."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 15.0)
            if self.now >= self.requeue_at:
                self.decide()

    def decide(self) -> Decision:
        decision = decide(
            {"solver": self.last},
            config=self.config,
            fleet=fleet(home(self.size, startup_s=30.0)),
            history=self.history,
            now=self.now,
        )
        self.history = decision.history
        self.requeue_at = inf if decision.requeue_at is None else decision.requeue_at
        target = decision.targets["home"]
        if target != self.size:
            self.requeue_at = self.now
            self.changes.append((self.now, self.size, target))
            self.size = target
        return decision
