"""The dataflow of a job without models, run as its pod runs it, in a process whose cost can be read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml
from pydantic import SecretStr

from benchmarks.trajectories.broker import MonitoredNats, Traffic
from benchmarks.trajectories.payloads import GROUP_SIZE, POLICY
from trimtab.dataflow.__main__ import DataflowPodSettings
from trimtab.embedded.child import Child, Command
from trimtab.embedded.server import poll_until
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import (
    LedgerSettings,
    LogSettings,
    NatsSettings,
    ObjectStoreSettings,
    PodSettings,
    ProbeSettings,
    environment_for,
)

_START_S = 60.0
_STOP_S = 10.0
NAMESPACE = "benchmark"
_PROMPTS = 1000
_MAX_STALENESS = 8
_MAX_STEPS = 1_000_000
_LOOPBACK = "127.0.0.1"
Stages = Sequence[Mapping[str, object]]
"""As a manifest has them."""


class PodDidNotStart(RuntimeError):
    """The dataflow process ended or never served; the message has the end of its log."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a process has taken so far."""

    cpu_s: float
    resident_bytes: int
    traffic: Traffic

    def since(self, earlier: Usage) -> Usage:
        return Usage(
            cpu_s=self.cpu_s - earlier.cpu_s,
            resident_bytes=self.resident_bytes - earlier.resident_bytes,
            traffic=self.traffic - earlier.traffic,
        )


class DataflowPod:
    """A running one."""

    def __init__(
        self, job: str, *, batch_size: int, process: psutil.Process, server: MonitoredNats, stages: Stages = ()
    ) -> None:
        self.job = job
        self.batch_size = batch_size
        self.topology = JobTopology(NAMESPACE, job, stages=tuple(str(stage["name"]) for stage in stages))
        self.pid: int = process.pid
        self._process = process
        self._server = server

    def usage(self) -> Usage:
        times = self._process.cpu_times()
        return Usage(
            cpu_s=times.user + times.system,
            resident_bytes=self._process.memory_info().rss,
            traffic=self._server.traffic(_connection(self.job)),
        )


@contextmanager
def dataflow_pod(
    job: str,
    *,
    batch_size: int,
    folder: Path,
    server: MonitoredNats,
    nats: NatsSettings | None = None,
    stages: Stages = (),
) -> Iterator[DataflowPod]:
    """`python -m trimtab.dataflow`, from start to serving; its streams are left to the server's folder."""
    job_file = folder / f"{job}.yaml"
    job_file.write_text(yaml.safe_dump(manifest(job, batch_size=batch_size, stages=stages)))
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Question {number}?"}) + "\n" for number in range(_PROMPTS)))
    settings = DataflowPodSettings(
        job_file=job_file,
        pod=PodSettings(namespace=NAMESPACE, job=job, role="dataflow", name=_connection(job)),
        nats=nats or server.settings,
        object_store=ObjectStoreSettings(bucket="never-dialled"),
        ledger=LedgerSettings(key=SecretStr("of this benchmark, and of no other one")),
        logs=LogSettings(level="warning", format="json"),
        probes=ProbeSettings(host=_LOOPBACK, port=0),
    )
    log_file = folder / f"{job}.log"
    child = Child(
        Command(
            arguments=[sys.executable, "-m", "trimtab.dataflow"],
            environment={**os.environ, **environment_for(settings)},
            log_file=log_file,
            folder=folder,
        )
    )
    process = psutil.Process(child.pid)
    pod = DataflowPod(job, batch_size=batch_size, process=process, server=server, stages=stages)
    try:
        poll_until(
            lambda: server.listens(pod.topology.batch_subject(POLICY)),
            timeout_s=_START_S,
            give_up=lambda: not child.alive,
            failure=lambda: PodDidNotStart(f"the dataflow of {job} did not start:\n{log_file.read_text()[-4000:]}"),
        )
        yield pod
    finally:
        child.stop(grace_s=_STOP_S)


def manifest(job: str, *, batch_size: int, stages: Stages = ()) -> dict[str, object]:
    return {
        "apiVersion": "rl.trimtab.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": job},
        "spec": {
            "workflow": {
                "entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn",
                "roles": [{"name": POLICY, "policy": POLICY}],
            },
            "data": {
                "prompts": [{"name": "train", "jsonl": {"uri": "prompts.jsonl"}}],
                "groupSize": GROUP_SIZE,
                "batchSize": batch_size,
                "maxStaleness": _MAX_STALENESS,
            },
            "policies": [{"name": POLICY, "model": {"uri": "model"}}],
            "pools": [{"name": "pool", "replicas": 1}],
            "maxSteps": _MAX_STEPS,
            **({"stages": list(stages)} if stages else {}),
        },
    }


def _connection(job: str) -> str:
    return f"{job}-dataflow-0"
