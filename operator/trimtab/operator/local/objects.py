"""The job, its pools and its trainers on one machine, where no API server keeps them: plans read and change them here
as they do there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from trimtab.api.autoscaling import AutoscalingStatus
from trimtab.api.conditions import ConditionType
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer, TrainerStatus
from trimtab.fabric.durable_files import replace_file
from trimtab.kube.resources import Key
from trimtab.operator.autoscale.agent.maintainer import AgentMaintainers
from trimtab.operator.autoscale.history import History
from trimtab.operator.conditions import find
from trimtab.operator.event_reasons import RESCALED
from trimtab.operator.plan.actions import DeletePool, PodAction, PutPool, PutTrainer, RemovePod, StartPod, StopPod
from trimtab.operator.plan.job import Observed, plan_job
from trimtab.operator.plan.lifecycle import verdict
from trimtab.operator.plan.pods import ObservedPod
from trimtab.operator.plan.pool import plan_pool
from trimtab.operator.plan.progress import JobReport
from trimtab.operator.plan.trainer import plan_trainer
from trimtab.operator.scaling.scaled_plan import with_scaling

_log = structlog.get_logger(__name__)
# There is one job here, and no API server to give it a uid.
_UID = ""


class LocalObjects:
    """Of one job. Attempts of trainers are kept in a file: an attempt that was ever seen is never used again."""

    def __init__(
        self,
        job: RLJob,
        *,
        attempts_file: Path,
        maintainers: AgentMaintainers,
        rescaled: Callable[[AutoscalingStatus], None] | None = None,
    ) -> None:
        """`rescaled` is told of each decision that changes the fleet."""
        self.job = job
        self._rescaled = rescaled
        self._maintainers = maintainers
        self.pools: dict[str, RolloutPool] = {}
        self.trainers: dict[str, Trainer] = {}
        self.scaling_history: History | None = None
        self._attempts_file = attempts_file
        self.attempts: dict[str, int] = read_attempts(attempts_file)

    def suspend(self) -> None:
        self.job = self.job.model_copy(update={"spec": self.job.spec.model_copy(update={"suspend": True})})

    @property
    def succeeded(self) -> bool:
        ended = verdict(self.job)
        return ended is not None and ended.status == "True"

    @property
    def failure(self) -> str | None:
        """Why the job was given up."""
        ended = verdict(self.job)
        return ended.message if ended is not None and ended.status == "False" else None

    @property
    def activity(self) -> str:
        """What the job does or waits for. Why it failed is said once, by what ends the run."""
        if self.failure is not None:
            return "Failed: its pods are stopped"
        summary = find(self.job.status.conditions, ConditionType.SUCCEEDED) if self.job.status else None
        return "" if summary is None else f"{summary.reason} {summary.message}".rstrip()

    def reconcile(self, pods: Sequence[ObservedPod], report: JobReport, *, now: float) -> list[PodAction]:
        """Plan everything once: objects and their statuses change here, actions on pods are for the caller to carry
        out."""
        actions: list[PodAction] = []
        for name, pool in self.pools.items():
            planned = plan_pool(self.job, pool, [pod for pod in pods if pod.owner == name], now=now)
            self.pools[name] = pool.model_copy(update={"status": planned.status})
            actions += planned.actions
        for name, trainer in self.trainers.items():
            decided = plan_trainer(self.job, trainer, [pod for pod in pods if pod.owner == name], now=now)
            self._note_attempt(name, decided.status.attempt)
            self.trainers[name] = trainer.model_copy(update={"status": decided.status})
            actions += decided.actions
        observed = Observed(
            pools=list(self.pools.values()),
            trainers=list(self.trainers.values()),
            pods=[pod for pod in pods if pod.owner == self.job.metadata.name],
            report=report,
        )
        whole = plan_job(self.job, observed, now=now)
        scaled = with_scaling(
            whole, self.job, observed, history=self.scaling_history, reply=self._maintainers.reply(_UID), now=now
        )
        self.scaling_history = scaled.history
        agent = self.job.spec.autoscaling.maintainer.agent
        if scaled.question is not None and agent is not None:
            self._maintainers.ask(Key("", self.job.metadata.name), _UID, scaled.question, agent)
        for event in scaled.events:
            _log.info("autoscaling", reason=event.reason, message=event.message)
            decision = scaled.plan.status.autoscaling
            if event.reason == RESCALED and self._rescaled is not None and decision is not None:
                self._rescaled(decision)
        self.job = self.job.model_copy(update={"status": scaled.plan.status})
        for action in scaled.plan.actions:
            match action:
                case PutPool(pool=pool):
                    present = self.pools.get(pool.metadata.name)
                    self.pools[pool.metadata.name] = pool.model_copy(
                        update={"status": present.status if present else None}
                    )
                case PutTrainer(trainer=trainer):
                    self._put_trainer(trainer)
                case DeletePool(name=name):
                    del self.pools[name]
                case StartPod() | StopPod() | RemovePod():
                    actions.append(action)
        return actions

    def _put_trainer(self, trainer: Trainer) -> None:
        name = trainer.metadata.name
        present = self.trainers.get(name)
        status = present.status if present else TrainerStatus(attempt=self.attempts.get(name, 0))
        self.trainers[name] = trainer.model_copy(update={"status": status})

    def _note_attempt(self, trainer: str, attempt: int) -> None:
        if attempt != self.attempts.get(trainer, 0):
            attempts = self.attempts | {trainer: attempt}
            replace_file(self._attempts_file, json.dumps(attempts).encode())
            self.attempts = attempts


def read_attempts(path: Path) -> dict[str, int]:
    """By trainer, as `LocalObjects` keeps them."""
    return {str(name): int(attempt) for name, attempt in json.loads(path.read_text()).items()} if path.exists() else {}
