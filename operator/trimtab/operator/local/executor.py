"""Runs planned pods as processes of this machine: environment, secrets, ports, logs, SIGTERM then SIGKILL.

Secrets come from the environment of `trimtab run` itself, because there is no cluster to keep them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import structlog

from trimtab.api.scalars import SecretKey
from trimtab.embedded.child import Command
from trimtab.embedded.ports import LOOPBACK, free_ports
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.pod import EXIT_MISCONFIGURED
from trimtab.fabric.restarts import RestartPolicy
from trimtab.operator.local.container import LocalContainer
from trimtab.operator.plan.actions import PodAction, RemovePod, StartPod, StopPod
from trimtab.operator.plan.pods import ObservedPod, Phase, PodPlan

_log = structlog.get_logger(__name__)
_VARIABLE = re.compile(r"\$\(([A-Z0-9_]+)\)")
RESTARTS = RestartPolicy(
    backoff=FullJitter(base_s=1.0, cap_s=30.0), stable_s=30.0, gives_up=lambda code: code == EXIT_MISCONFIGURED
)
FETCHED = "fetched"
"""Below the state folder: places of what `trimtab run` has fetched."""
_NEWS_S = 60.0
# What a Python process needs to find itself; everything else a pod gets is in its plan.
_INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "VIRTUAL_ENV",
    "SSL_CERT_FILE",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
)


class SecretMissing(LookupError):
    """A manifest names a secret that the environment does not have."""


class _Pod:
    def __init__(self, plan: PodPlan, containers: Sequence[LocalContainer], *, created_at: float) -> None:
        self.plan = plan
        self.containers = containers
        self.created_at = created_at
        self.stop_by: float | None = None
        self.asked_to_stop = False
        """By the plan; one that is misconfigured is stopped by itself, and that is its failure."""
        self.finished_at: float | None = None
        self.failure = ""
        """Why it failed, looked up once when it ended."""

    @property
    def ended(self) -> bool:
        return self.finished_at is not None

    @property
    def misconfigured(self) -> bool:
        return any(container.misconfigured for container in self.containers)

    @property
    def failed(self) -> bool:
        return any(container.exit_code not in (None, 0) for container in self.containers)


class LocalExecutor:
    """The kubelet of one machine. `tend` must be called often: it restarts, kills what overstays, and notices ends."""

    def __init__(
        self,
        folder: Path,
        *,
        job_file: Path,
        environment: Mapping[str, str],
        clock: Callable[[], float],
        restarts: RestartPolicy = RESTARTS,
    ) -> None:
        self._folder = folder
        self._job_file = job_file.resolve()
        self._environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(environment)
        self._clock = clock
        self._restart_policy = restarts
        self._pods: dict[str, _Pod] = {}
        self._rendezvous: dict[tuple[str, int], int] = {}

    def observe(self) -> list[ObservedPod]:
        return [self._observed(pod) for pod in self._pods.values()]

    def apply(self, actions: Iterable[PodAction]) -> None:
        for action in actions:
            match action:
                case StartPod(pod=pod):
                    self._start(pod)
                case StopPod(name=name, reason=reason):
                    self._pods[name].asked_to_stop |= not self._pods[name].misconfigured
                    self._stop(self._pods[name], reason=reason)
                case RemovePod(name=name):
                    del self._pods[name]

    def tend(self) -> None:
        now = self._clock()
        for pod in self._pods.values():
            if pod.ended:
                continue
            for container in pod.containers:
                container.tend()
            if pod.misconfigured:
                self._stop(pod, reason="it says that it is misconfigured")
            if pod.stop_by is not None:
                self._terminate(pod)
                if now >= pod.stop_by:
                    for container in pod.containers:
                        container.kill()
            codes = [container.exit_code for container in pod.containers]
            if all(code is not None for code in codes) or (
                pod.stop_by is not None and all(c.gone for c in pod.containers)
            ):
                self._end(pod, now=now)

    def _end(self, pod: _Pod, *, now: float) -> None:
        for container in pod.containers:
            container.kill()  # grandchildren that outlived the leader
        pod.finished_at = now
        for container in sorted(pod.containers, key=lambda container: not container.misconfigured):
            if container.exit_code not in (None, 0) and not pod.failure:
                pod.failure = container.last_words()
        _log.info("pod_ended", pod=pod.plan.name, failure=pod.failure)

    def pids(self) -> dict[str, int]:
        """By pod/container, for people and for tests that kill them."""
        return {
            f"{pod.plan.name}/{container.plan.name}": container.pid
            for pod in self._pods.values()
            for container in pod.containers
            if container.pid is not None
        }

    def restarts(self) -> dict[str, int]:
        return {
            f"{pod.plan.name}/{container.plan.name}": container.restarts
            for pod in self._pods.values()
            for container in pod.containers
        }

    def failing(self) -> dict[str, str]:
        """By pod/container, why those died that did a short while ago, for people."""
        since = self._clock() - _NEWS_S
        return {
            f"{pod.plan.name}/{container.plan.name}": container.died_of
            for pod in self._pods.values()
            for container in pod.containers
            if container.died_at is not None and container.died_at > since
        }

    def kill_all(self) -> None:
        for pod in self._pods.values():
            for container in pod.containers:
                container.kill()

    def _start(self, plan: PodPlan) -> None:
        scratch = self._folder / "pods" / plan.name
        scratch.mkdir(parents=True, exist_ok=True)
        variables = self._variables(plan, scratch)
        containers: list[LocalContainer] = []
        # Known from the first container on, so that nothing is left behind when a later one cannot be started.
        self._pods[plan.name] = _Pod(plan, containers, created_at=self._clock())
        for container in plan.containers:
            if container.before:
                continue
            environment = {} if container.sealed else dict(self._environment)
            environment |= {name: _expanded(value, variables) for name, value in container.environment.items()}
            environment |= {name: secret_value(secret, os.environ) for name, secret in container.secrets.items()}
            command = Command(
                arguments=[_expanded(argument, variables) for argument in _interpreted(container.command)],
                environment=environment,
                log_file=self._folder / "logs" / f"{plan.name}.{container.name}.log",
                folder=scratch,
            )
            containers.append(
                LocalContainer(
                    container, command, restart=plan.restart, clock=self._clock, restarts=self._restart_policy
                )
            )
        _log.info("pod_started", pod=plan.name, attempt=plan.attempt)

    def _variables(self, plan: PodPlan, scratch: Path) -> dict[str, str]:
        names = [port for container in plan.containers for port in container.ports]
        variables = {name: str(port) for name, port in zip(names, free_ports(len(names)), strict=True)}
        variables |= {
            "JOB_FILE": str(self._job_file),
            "JOB_FOLDER": str(self._job_file.parent),
            "SCRATCH": str(scratch),
            "FETCHED": str(self._folder / FETCHED),
            "SANDBOX": str(scratch),
        }
        if plan.gang:
            key = (plan.owner, plan.attempt)
            if key not in self._rendezvous:
                self._rendezvous[key] = free_ports(1)[0]
            variables |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(self._rendezvous[key])}
        return variables

    def _stop(self, pod: _Pod, *, reason: str) -> None:
        if pod.stop_by is None and not pod.ended:
            _log.info("pod_stopping", pod=pod.plan.name, reason=reason)
            pod.stop_by = self._clock() + pod.plan.grace_s
            self._terminate(pod)

    def _terminate(self, pod: _Pod) -> None:
        """First the containers proper; when they are gone, the sidecars."""
        proper = [container for container in pod.containers if not container.plan.sidecar]
        for container in proper if any(not container.gone for container in proper) else pod.containers:
            container.terminate()

    def _observed(self, pod: _Pod) -> ObservedPod:
        phase = Phase.RUNNING if not pod.ended else Phase.FAILED if pod.failed else Phase.SUCCEEDED
        return ObservedPod(
            name=pod.plan.name,
            phase=phase,
            owner=pod.plan.owner,
            attempt=pod.plan.attempt,
            revision=pod.plan.revision,
            created_at=pod.created_at,
            finished_at=pod.finished_at,
            stopping=pod.asked_to_stop,
            misconfigured=pod.ended and pod.misconfigured,
            exit_code=next((c.exit_code for c in pod.containers if c.exit_code), None),
            message=pod.failure,
        )


def secret_variable(secret: SecretKey) -> str:
    """Where a secret is looked for: key `api-key` of `endpoint` in SECRET_ENDPOINT_API_KEY."""
    return "SECRET_" + re.sub(r"[^A-Z0-9]", "_", f"{secret.name}_{secret.key}".upper())


def secret_value(secret: SecretKey, environment: Mapping[str, str]) -> str:
    variable = secret_variable(secret)
    if variable not in environment:
        raise SecretMissing(f"set {variable} to the value of key {secret.key} of secret {secret.name}")
    return environment[variable]


def _interpreted(command: Sequence[str]) -> list[str]:
    """`python` is the one we run in."""
    return [sys.executable, *command[1:]] if command[0] == "python" else list(command)


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: variables.get(match[1], match[0]), text)
