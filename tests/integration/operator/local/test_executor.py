"""The local executor with real, small processes."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.dataflow.jobs import job
from tests.support.polling import eventually
from tests.support.processes import runs
from trimtab.api.scalars import SecretKey
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.pod import EXIT_MISCONFIGURED
from trimtab.fabric.restarts import RestartPolicy
from trimtab.operator.autoscale.agent.egress import Egress
from trimtab.operator.autoscale.agent.maintainer import AgentMaintainers, KeyMissing
from trimtab.operator.autoscale.agent.transcripts import TranscriptFolder
from trimtab.operator.local.executor import LocalExecutor, SecretMissing
from trimtab.operator.local.objects import LocalObjects
from trimtab.operator.plan.actions import RemovePod, StartPod, StopPod
from trimtab.operator.plan.pods import ContainerPlan, ObservedPod, Phase, PodPlan, Restart
from trimtab.operator.plan.progress import JobReport

FOREVER = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.1)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{FOREVER}"
DEADLINE_S = 60.0


def container(
    name: str, code: str, *, sidecar: bool = False, ports: tuple[str, ...] = (), **environment: str
) -> ContainerPlan:
    return ContainerPlan(
        name=name, command=("python", "-c", code), environment=environment, sidecar=sidecar, ports=ports
    )


def pod(*containers: ContainerPlan, restart: Restart = Restart.ALWAYS, grace_s: float = 10.0, **fields: Any) -> PodPlan:
    given = {"name": "pod", "role": "test", "owner": "test", **fields}
    return PodPlan(containers=containers, restart=restart, grace_s=grace_s, **given)


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executor = LocalExecutor(
            folder, job_file=folder / "job.yaml", environment={"COMMON": "yes"}, clock=time.time
        )

    def start(self, plan: PodPlan) -> None:
        self.executor.apply([StartPod(plan)])

    def observed(self, name: str = "pod") -> ObservedPod:
        self.executor.tend()
        return next(pod for pod in self.executor.observe() if pod.name == name)

    def log(self, container: str, *, pod: str = "pod") -> str:
        path = self.folder / "logs" / f"{pod}.{container}.log"
        return path.read_text() if path.exists() else ""

    async def until(self, phase: Phase, name: str = "pod") -> ObservedPod:
        await eventually(lambda: self.observed(name).phase is phase, timeout_s=DEADLINE_S)
        return self.observed(name)

    async def until_up(self, container: str, *, times: int = 1, pod: str = "pod") -> None:
        await eventually(lambda: self.log(container, pod=pod).count("up") >= times, timeout_s=DEADLINE_S)


@pytest.fixture
def machine(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = Machine(tmp_path)
    yield made
    pids = made.executor.pids().values()
    made.executor.kill_all()
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_environment_ports_and_variables(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_OPERATOR", "x")
    code = "import json, os, sys; print(json.dumps([dict(os.environ), os.getcwd()]))"
    here = container("first", code, ports=("PORT",), ADDRESS="127.0.0.1:$(PORT)", FILE="$(JOB_FILE)", KEPT="$(NOBODY)")
    other = container("second", code, PEER="$(PORT)")
    machine.start(pod(here, other, restart=Restart.NEVER))
    await machine.until(Phase.SUCCEEDED)
    first, folder = json.loads(machine.log("first"))
    second, _ = json.loads(machine.log("second"))
    assert "SECRET_OF_THE_OPERATOR" not in first
    assert first["COMMON"] == "yes"
    assert first["ADDRESS"] == f"127.0.0.1:{second['PEER']}"
    assert "PEER" not in first
    assert first["FILE"] == str(machine.folder / "job.yaml")
    assert first["KEPT"] == "$(NOBODY)"
    assert Path(folder) == machine.folder / "pods" / "pod"


async def test_a_killed_container_comes_back_by_itself(machine: Machine) -> None:
    machine.start(pod(container("victim", FOREVER), container("bystander", FOREVER)))
    await machine.until_up("victim")
    pids = machine.executor.pids()
    os.kill(pids["pod/victim"], signal.SIGKILL)

    def back() -> bool:
        machine.executor.tend()
        return machine.executor.pids().get("pod/victim") not in (None, pids["pod/victim"])

    await eventually(back, timeout_s=DEADLINE_S)
    await machine.until_up("victim", times=2)
    assert machine.executor.restarts() == {"pod/victim": 1, "pod/bystander": 0}
    assert list(machine.executor.failing()) == ["pod/victim"]
    assert machine.executor.pids()["pod/bystander"] == pids["pod/bystander"]
    assert machine.observed().phase is Phase.RUNNING


async def test_what_ignores_sigterm_is_killed_after_the_grace_period_with_its_children(machine: Machine) -> None:
    spawn = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {FOREVER!r}]).pid, flush=True)\n"
    machine.start(pod(container("stubborn", spawn + STUBBORN), grace_s=0.5))
    await machine.until_up("stubborn", times=2)
    grandchild = next(int(word) for word in machine.log("stubborn").split() if word.isdigit())
    began = time.monotonic()
    machine.executor.apply([StopPod("pod", "test"), StopPod("pod", "again")])
    ended = await machine.until(Phase.FAILED)
    assert time.monotonic() - began >= 0.5
    assert ended.stopping
    await eventually(lambda: not runs(grandchild), timeout_s=DEADLINE_S)


async def test_a_sidecar_ends_after_the_others(machine: Machine, tmp_path: Path) -> None:
    draining = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        f"    while not open({str(tmp_path / 'drained')!r}).read(): time.sleep(0.02)\n"
        "    sys.exit(0)\n"
        f"signal.signal(signal.SIGTERM, end)\n{FOREVER}"
    )
    (tmp_path / "drained").touch()
    machine.start(pod(container("engine", FOREVER, sidecar=True), container("worker", draining), grace_s=600.0))
    await machine.until_up("worker")
    await machine.until_up("engine")
    machine.executor.apply([StopPod("pod", "test")])
    os.kill(machine.executor.pids()["pod/engine"], signal.SIGKILL)  # even now the engine comes back
    await eventually(
        lambda: _tended(machine).count("engine") == 1 and machine.log("engine").count("up") == 2, timeout_s=DEADLINE_S
    )
    assert "pod/worker" in machine.executor.pids(), "it drains"
    (tmp_path / "drained").write_text("yes")
    await eventually(lambda: machine.observed().phase is not Phase.RUNNING, timeout_s=DEADLINE_S)
    assert machine.executor.pids() == {}


def _tended(machine: Machine) -> str:
    machine.executor.tend()
    return " ".join(name.partition("/")[2] for name in machine.executor.pids())


async def test_a_failure_is_told_with_the_end_of_the_log(machine: Machine) -> None:
    machine.start(pod(container("bad", "raise SystemExit('out of luck')"), restart=Restart.NEVER, attempt=2))
    ended = await machine.until(Phase.FAILED)
    assert (ended.message, ended.exit_code) == ("bad exited with 1: out of luck", 1)
    machine.executor.apply([RemovePod("pod")])
    assert machine.executor.observe() == []


async def test_a_container_that_says_it_is_misconfigured_is_not_started_again(machine: Machine) -> None:
    code = f"print('prompts.jsonl, line 3: not JSON', flush=True); raise SystemExit({EXIT_MISCONFIGURED})"
    machine.start(pod(container("engine", FOREVER, sidecar=True), container("worker", code)))
    ended = await machine.until(Phase.FAILED)
    assert ended.misconfigured
    assert not ended.stopping, "nobody asked it to: that it stops is its failure, and plans look at failures"
    assert ended.message == f"worker exited with {EXIT_MISCONFIGURED}: prompts.jsonl, line 3: not JSON"
    assert machine.executor.pids() == {}


async def test_a_pod_that_was_asked_to_go_is_not_blamed_for_how_it_goes(machine: Machine) -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, lambda *_: exit({EXIT_MISCONFIGURED}))\n{FOREVER}"
    machine.start(pod(container("worker", code)))
    await machine.until_up("worker")
    machine.executor.apply([StopPod("pod", "test")])
    assert (await machine.until(Phase.FAILED)).stopping


async def test_a_rollout_pod_that_says_it_is_misconfigured_ends_the_job(machine: Machine) -> None:
    """The plans and the executor together, with a worker of our own in place of the rollout's."""
    objects = LocalObjects(job(), attempts_file=machine.folder / "attempts.json", maintainers=no_agents(machine.folder))
    line = json.dumps({"event": "job_misconfigured", "level": "error", "reason": "workflow.args do not fit my:Tool"})
    broken = container("worker", f"print({line!r}, flush=True); raise SystemExit({EXIT_MISCONFIGURED})")

    def failure() -> str | None:
        machine.executor.tend()
        for action in objects.reconcile(machine.executor.observe(), JobReport(), now=time.time()):
            if isinstance(action, StartPod):
                if action.pod.role != "rollout":
                    continue
                action = StartPod(replace(action.pod, containers=(broken,)))
            machine.executor.apply([action])
        return objects.failure

    await eventually(lambda: failure() is not None, timeout_s=DEADLINE_S)
    said = f"job-local-rollout-0: worker exited with {EXIT_MISCONFIGURED}: workflow.args do not fit my:Tool"
    assert objects.failure == said
    assert said not in objects.activity, "whoever ends the run says it, once"


async def test_of_a_container_that_died_only_its_own_words_are_told(machine: Machine) -> None:
    """Its log is that of the one before, too."""
    code = "import os, sys; print('first', flush=True) if not os.path.exists('x') else os.kill(os.getpid(), 9); "
    machine.start(pod(container("main", code + "open('x', 'w'); sys.exit(3)")))
    await eventually(lambda: machine.observed().ready and bool(machine.executor.failing()), timeout_s=DEADLINE_S)
    assert machine.executor.failing() == {"pod/main": "main exited with 3: first"}

    def killed() -> bool:
        machine.executor.tend()
        return machine.executor.failing() == {"pod/main": "main was killed by SIGKILL"}

    await eventually(killed, timeout_s=DEADLINE_S)


async def test_a_pod_that_cannot_be_started_leaves_nothing_behind(machine: Machine) -> None:
    broken = ContainerPlan(name="broken", command=("/no/such/program",))
    with pytest.raises(FileNotFoundError):
        machine.start(pod(container("good", FOREVER), broken))
    assert list(machine.executor.pids()) == ["pod/good"]
    machine.executor.kill_all()
    assert machine.executor.pids() == {}


def no_agents(folder: Path) -> AgentMaintainers:
    async def read_key(namespace: str, secret: SecretKey) -> str:
        raise KeyMissing("this job has no agent")

    return AgentMaintainers(
        read_key=read_key,
        transcripts=TranscriptFolder(folder, newest=1),
        on_reply=lambda key, reply: None,
        egress=Egress(),
    )


async def test_ranks_fail_and_start_again_as_one(machine: Machine) -> None:
    """The plans and the executor together, with ranks of our own in place of the trainer."""
    desired = job("gang", trainer={"replicas": 2}, failurePolicy={"backoffSeconds": 1, "maxRestarts": 3})
    objects = LocalObjects(
        desired, attempts_file=machine.folder / "attempts.json", maintainers=no_agents(machine.folder)
    )
    code = f"import os; print('attempt', os.environ['TRIMTAB_ATTEMPT'], flush=True)\n{FOREVER}"

    def turn() -> None:
        machine.executor.tend()
        for action in objects.reconcile(machine.executor.observe(), JobReport(), now=time.time()):
            if isinstance(action, StartPod):
                if not action.pod.gang:
                    continue
                (own,) = action.pod.containers
                ours = replace(own, command=("python", "-c", code))
                action = StartPod(replace(action.pod, containers=(ours,)))
            machine.executor.apply([action])

    def attempts(rank: int) -> int:
        turn()
        return machine.log("trainer", pod=f"gang-solver-trainer-{rank}").count("attempt")

    await eventually(lambda: attempts(0) == attempts(1) == 1, timeout_s=DEADLINE_S)
    pids = machine.executor.pids()
    os.kill(pids["gang-solver-trainer-1/trainer"], signal.SIGKILL)
    await eventually(lambda: attempts(0) == attempts(1) == 2, timeout_s=DEADLINE_S)
    assert not any(runs(pid) for pid in pids.values())
    status = objects.trainers["gang-solver"].status
    assert status is not None
    assert (status.attempt, status.restarts, status.restarts_counted) == (2, 1, 1)
    assert "attempt 2" in machine.log("trainer", pod="gang-solver-trainer-0")
    again = LocalObjects(desired, attempts_file=machine.folder / "attempts.json", maintainers=no_agents(machine.folder))
    again.reconcile([], JobReport(), now=time.time())
    starts = again.reconcile([], JobReport(), now=time.time())
    assert [start.pod.attempt for start in starts if isinstance(start, StartPod) and start.pod.gang] == [3, 3]


async def test_secrets_come_from_the_environment_of_whoever_runs_the_job(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = SecretKey(name="endpoint", key="api-key")
    plan = container("main", "import os; print(os.environ['KEY'])")
    asking = pod(replace(plan, secrets={"KEY": secret}), restart=Restart.NEVER)
    with pytest.raises(SecretMissing, match="set SECRET_ENDPOINT_API_KEY to the value of key api-key"):
        machine.start(asking)
    monkeypatch.setenv("SECRET_ENDPOINT_API_KEY", "abc123")
    machine.start(replace(asking, name="other"))
    await machine.until(Phase.SUCCEEDED, "other")
    assert machine.log("main", pod="other") == "abc123\n"


async def test_containers_that_died_together_are_not_started_together(tmp_path: Path) -> None:
    now, waits = [0.0], iter([0.0, 0.25, 0.5, 0.75, 1.0])
    backoff = FullJitter(base_s=10.0, cap_s=10.0, uniform=lambda low, high: low + next(waits) * (high - low))
    executor = LocalExecutor(
        tmp_path,
        job_file=tmp_path / "job.yaml",
        environment={},
        clock=lambda: now[0],
        restarts=RestartPolicy(backoff=backoff, stable_s=30.0),
    )
    executor.apply([StartPod(pod(container("main", FOREVER), name=f"pod-{number}")) for number in range(5)])
    first = executor.pids()
    try:
        for pid in first.values():
            os.killpg(pid, signal.SIGKILL)
        await eventually(lambda: not executor.pids(), timeout_s=DEADLINE_S)
        started: dict[float, int] = {}
        for moment in (0.0, 4.9, 5.0, 6.25, 7.5, 8.75, 10.0):
            now[0] = moment
            executor.tend()
            started[moment] = len(executor.pids())
        assert started == {0.0: 0, 4.9: 0, 5.0: 1, 6.25: 2, 7.5: 3, 8.75: 4, 10.0: 5}
    finally:
        executor.apply([StopPod(f"pod-{number}", reason="the end") for number in range(5)])
        now[0] = 1e9
        executor.tend()
