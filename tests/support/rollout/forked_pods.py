"""Worker pods under fire: the real process of a rollout pod, forked from one that has its imports behind it."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoTokenizer

import trimtab.rollout.__main__ as rollout
from tests.support.polling import eventually
from tests.support.rollout.job import Job
from tests.support.rollout.pod_site import PodSite, metric
from tests.support.template_process import TemplateProcess
from trimtab.fabric.pod import pod_settings, run_pod

_BUSY_S = 20.0
"""What a machine with several tests on it may add to the time that a pod is given to leave."""


def prepare(model: Path) -> None:
    """What a pod loads when it first needs it, and every fork would load again."""
    AutoTokenizer.from_pretrained(model, local_files_only=True)


def roll_out(environment: dict[str, str], log: Path) -> None:
    """What `python -m trimtab.rollout` does, with its output in a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)
    os.environ.update(environment)
    run_pod(rollout._main(pod_settings(rollout.RolloutPodSettings)))


@dataclass
class RolloutPod:
    """A pod that runs, or has."""

    site: PodSite
    name: str
    template: TemplateProcess
    pid: int = 0
    port: int = 0
    told_at: float | None = None
    """When it was told to leave."""
    ending: int | None = field(default=None)

    def start(self) -> None:
        environment, self.port = self.site.environment(self.name)
        self.pid = self.template.start(roll_out, environment, self.site.log(self.name))

    @property
    def runs(self) -> bool:
        if self.ending is None:
            self.ending = self.template.ended(self.pid)
        return self.ending is None

    def kill(self) -> None:
        self.template.kill(self.pid)
        self.ending = signal.SIGKILL

    def tell_to_leave(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        self.told_at = time.monotonic()

    def left_well(self) -> bool:
        """Whether it is gone; fails when it did not leave as it should, or takes longer than it has."""
        assert self.told_at is not None
        took = time.monotonic() - self.told_at
        if self.runs:
            assert took <= self.site.grace_s + _BUSY_S, f"{self.name} is still there after {took:.1f} s: {self.said()}"
            return False
        assert self.ending is not None
        assert os.WIFEXITED(self.ending), f"{self.name} was killed by signal {os.WTERMSIG(self.ending)}: {self.said()}"
        assert os.WEXITSTATUS(self.ending) == 0, self.said()
        return True

    async def settles(self, job: Job, *, timeout_s: float) -> None:
        """Returns once no task of the job is left; fails when the pod has ended before."""

        async def settled() -> bool:
            assert self.runs, self.said()
            return await job.settled()

        await eventually(settled, timeout_s=timeout_s)

    async def leave(self) -> None:
        self.tell_to_leave()
        await eventually(self.left_well, timeout_s=self.site.grace_s + _BUSY_S)

    async def metric(self, name: str, **labels: str) -> float:
        return await metric(self.port, name, **labels) or 0.0

    def said(self) -> str:
        return self.site.log(self.name).read_text()[-4000:]
