"""Listens to a running job and writes down what happens: into its file, and into the story that the view tells from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trimtab.api.autoscaling import AutoscalingStatus
from trimtab.api.job import PoolStatus, RLJob
from trimtab.api.trainer import Trainer
from trimtab.cli.chronicle import records
from trimtab.cli.chronicle.file import ChronicleFile
from trimtab.cli.chronicle.records import Died, Ended, Fleet, Measured, Record
from trimtab.cli.chronicle.spending import cost_per_hour
from trimtab.cli.chronicle.story import Story
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State
from trimtab.operator.job_watch import JobMessage


class Chronicler:
    """An audience of a LocalJob. `story` is what earlier runs have left."""

    def __init__(self, file: ChronicleFile, story: Story, *, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock
        self.story = story
        self._job: RLJob | None = None
        self._failures: dict[str, int] = {}
        self._measured: dict[str, int] = {}

    def begin(self, job: RLJob, *, beside: Path, changed: tuple[str, ...] = ()) -> None:
        self._job = job
        self._note(records.began(job, beside=beside, at=self._clock(), changed=changed))

    def end(self, outcome: str, *, why: str = "") -> None:
        self._note(Ended(at=self._clock(), outcome=outcome, why=why))

    def on_message(self, message: JobMessage) -> None:
        self._note(records.of_message(message))

    def on_rescaled(self, decision: AutoscalingStatus) -> None:
        self._note(records.rescaled(decision, at=self._clock()))

    def observe_trainers(self, trainers: Sequence[Trainer]) -> None:
        """Records every failure once. The failure that ends the run is recorded by `end`."""
        for trainer in trainers:
            status, name = trainer.status, trainer.metadata.name
            if status is not None and status.restarts_counted > self._failures.get(name, 0):
                self._failures[name] = status.restarts_counted
                error = status.last_error
                pod = name if error is None or error.pod is None else error.pod
                self._note(Died(at=self._clock(), pod=pod, why="" if error is None else error.message))

    def observe_fleet(self, pools: Sequence[PoolStatus], members: Sequence[MemberHeartbeat]) -> None:
        """A fleet that is as it was is not written down again. Ready is who says so: on one machine the pool's status
        counts a replica from the moment its processes run.
        """
        serving = [member.pool for member in members if member.role is Role.ROLLOUT and member.state is State.READY]
        ready = {pool.name: serving.count(pool.name) for pool in pools}
        wanted = {pool.name: pool.desired_replicas for pool in pools}
        last = self.story.fleet[-1] if self.story.fleet else None
        if last is None or (last.ready, last.wanted) != (ready, wanted):
            cost = None if self._job is None else cost_per_hour(self._job, ready)
            self._note(Fleet(at=self._clock(), ready=ready, wanted=wanted, cost_per_hour=cost))

    def observe_measures(self, members: Sequence[MemberHeartbeat]) -> None:
        """Records what trainers say of a step once."""
        for member in members:
            if member.role is not Role.TRAINER or not member.measures:
                continue
            for policy, step in member.versions.items():
                if self._measured.get(policy) != step:
                    self._measured[policy] = step
                    rate = member.tokens_per_second
                    self._note(
                        Measured(
                            at=self._clock(), policy=policy, step=step, values=member.measures, tokens_per_second=rate
                        )
                    )

    def _note(self, record: Record) -> None:
        self.story.add(record)
        self._file.append(record)
