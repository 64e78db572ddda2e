"""Who sets the size: nobody, Kubernetes' HPA by utilisation, or our operator's `decide` in either of its modes."""

from __future__ import annotations

import math

from benchmarks.autoscaling.simulation import Stage, WindowFigures, World
from benchmarks.autoscaling.workload import Workload
from trimtab.api.autoscaling import Autoscaling, Maintainer, ScaleDown, ScaleUp
from trimtab.fabric.three_zones import three_zones
from trimtab.fabric.wire.balance import BalanceReport, Instance, Volume
from trimtab.fabric.wire.member import State
from trimtab.operator.autoscale.decide import decide
from trimtab.operator.autoscale.fleet import Fleet, Pool
from trimtab.operator.autoscale.history import restored

_POLICY = "solver"
_POOL = "home"


class Fixed:
    def reported(self, world: World, window: WindowFigures) -> None:
        pass

    def ticked(self, world: World) -> None:
        pass

    def next_tick(self) -> float | None:
        return None


class Utilisation:
    """HPA v2 with its defaults, on the share of engine slots in use."""

    _PERIOD_S = 15.0
    _TOLERANCE = 0.1
    _DOWN_WINDOW_S = 300.0

    def __init__(self, workload: Workload, *, target: float) -> None:
        self._workload = workload
        self._target = target
        self._next = self._PERIOD_S
        self._recommended: list[tuple[float, int]] = []

    def reported(self, world: World, window: WindowFigures) -> None:
        pass

    def next_tick(self) -> float | None:
        return self._next

    def ticked(self, world: World) -> None:
        if world.now < self._next:
            return
        self._next = world.now + self._PERIOD_S
        wanted = self._wanted(world)
        self._recommended = [(at, size) for at, size in self._recommended if at > world.now - self._DOWN_WINDOW_S]
        self._recommended.append((world.now, wanted))
        if wanted < world.desired:
            wanted = min(world.desired, max(size for _, size in self._recommended))
        wanted = min(wanted, max(2 * world.desired, world.desired + 4))
        world.set_size(min(self._workload.max_replicas, max(self._workload.min_replicas, wanted)))

    def _wanted(self, world: World) -> int:
        ready, living = world.ready, len(world.living)
        if not ready:
            return world.desired
        ratio = world.utilisation / self._target
        if abs(ratio - 1) <= self._TOLERANCE:
            return world.desired
        if ratio > 1 and living > ready:
            # Those that are not ready count as idle when growing.
            ratio = ratio * ready / living
            if ratio <= 1 + self._TOLERANCE:
                return world.desired
            return math.ceil(ratio * living)
        return math.ceil(ratio * ready)


class Operator:
    """The operator's own decision, with a clock that is the simulation's."""

    def __init__(self, workload: Workload, config: Autoscaling) -> None:
        self._workload = workload
        self._config = config
        self._history = restored(None, now=0.0)
        self._report: BalanceReport | None = None
        self._requeue_at: float | None = None
        self._startups: list[float] = []

    def reported(self, world: World, window: WindowFigures) -> None:
        self._report = _report(world, window, self._config)
        self.ticked(world)

    def next_tick(self) -> float | None:
        return self._requeue_at

    def ticked(self, world: World) -> None:
        started = [replica.ready_at - replica.created_at for replica in world.replicas if replica.ready_at <= world.now]
        pool = Pool(
            name=_POOL,
            desired=world.desired,
            ready=world.ready,
            startup_s=sorted(started)[len(started) // 2] if started else None,
        )
        decision = decide(
            {_POLICY: self._report},
            config=self._config,
            fleet=Fleet(pools=(pool,)),
            history=self._history,
            now=world.now,
        )
        self._history = decision.history
        self._requeue_at = decision.requeue_at
        world.set_size(decision.targets[_POOL])


def ours(workload: Workload) -> Operator:
    """With the manifest's defaults."""
    return Operator(
        workload,
        Autoscaling(mode="Auto", min_replicas=workload.min_replicas, max_replicas=workload.max_replicas),
    )


def plain(workload: Workload) -> Operator:
    """As published: every report is acted on at once, and nothing else is looked at."""
    return Operator(
        workload,
        Autoscaling(
            mode="Auto",
            maintainer=Maintainer(policy="ThreeZone"),
            min_replicas=workload.min_replicas,
            max_replicas=workload.max_replicas,
            scale_up=ScaleUp(stabilization_seconds=0, max_change=10_000, period_seconds=1),
            scale_down=ScaleDown(stabilization_seconds=0, max_change=10_000, period_seconds=1),
            cooldown_seconds=0,
            report_timeout_seconds=31_536_000,
        ),
    )


def _report(world: World, window: WindowFigures, config: Autoscaling) -> BalanceReport:
    size = world.workload.group_size
    states = {Stage.READY: State.READY, Stage.DRAINING: State.DRAINING, Stage.STARTING: State.STARTING}
    instances = tuple(
        Instance(
            member_id=f"r-{replica.number}",
            pool=_POOL,
            state=states[replica.stage],
            samples_per_second=window.finished[replica.number] * size / window.seconds,
            in_flight=len(replica.running),
            capacity=world.workload.slots,
        )
        for replica in world.replicas
        if replica.stage is not Stage.GONE
    )
    wait = min(1.0, window.wait_s / window.seconds)
    branch, target = three_zones(
        wait_fraction=wait,
        current=len(instances),
        accepted=window.accepted_groups,
        consumed=window.consumed_groups,
        tau_low=config.tau_low,
        tau_high=config.tau_high,
        shrink_margin=config.shrink_margin,
    )
    return BalanceReport(
        job="simulated",
        policy=_POLICY,
        version=window.last_step + 1,
        first_step=window.first_step,
        last_step=window.last_step,
        wall_seconds=window.seconds,
        wait_seconds=window.wait_s,
        step_seconds=window.seconds,
        wait_fraction=wait,
        produced=Volume(samples=window.produced_groups * size, tokens=int(window.produced_tokens)),
        accepted=Volume(samples=window.accepted_groups * size),
        consumed=Volume(samples=window.consumed_groups * size),
        stale_skipped=window.stale_groups * size,
        buffered=window.buffered_groups * size,
        room=(world.workload.max_staleness + 1) * world.workload.batch_groups * size,
        instances=instances,
        maintainer="ThreeZone",
        branch=branch,
        current=len(instances),
        target=target,
        at=window.at,
    )
