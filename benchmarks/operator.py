"""The operator with 1, 100 and 1,000 RLJobs of three pods on a real API server, without a node: how soon pods exist,
how soon a changed size is acted on, and what a job costs in requests and memory.

    python -m benchmarks.operator [--jobs 1 --jobs 100 --jobs 1000]
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks.report import Bar, logs_to_stderr, note, report
from trimtab.api import labels, names
from trimtab.api.crd import custom_resource_definitions
from trimtab.embedded.kube.assets import control_plane_assets
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.ports import free_ports
from trimtab.kube.access import load_access
from trimtab.kube.client import KubeClient
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import NAMESPACES, PODS, RLJOBS, ROLLOUT_POOLS, Key, Object

_NAMESPACES = 10
_PODS_PER_JOB = 3
_APPLIED_AT_ONCE = 20
_CHANGES = 60
_IDLE_S = 20.0
_PATIENCE_S = 900.0
_REQUESTS = re.compile(r'^trimtab_operator_api_requests_total\{code="(\d+)",resource="([^"]+)",verb="([^"]+)"\} (\S+)$')
# KubeRay 1.1.1 has 1,000 RayClusters ready after 258 s, on GKE.
_PEER_THOUSAND_S = 258.0


@dataclass(frozen=True, kw_only=True)
class Figures:
    jobs: int
    all_pods_s: float
    change_p50_s: float
    change_p99_s: float
    requests_per_job: float
    memory_mb: float
    idle_requests: int

    def shown(self) -> dict[str, float]:
        return {name: round(value, 3) for name, value in vars(self).items() if name != "jobs"}


class Operator:
    def __init__(self, process: subprocess.Popen[bytes], *, port: int) -> None:
        self._process = psutil.Process(process.pid)
        self._port = port

    @property
    def memory_mb(self) -> float:
        return float(self._process.memory_info().rss) / 1e6

    def requests(self) -> Counter[str]:
        """Answers so far, by verb and resource; watches and the lease are what an idle operator is allowed."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        counted: Counter[str] = Counter()
        for line in lines:
            if (match := _REQUESTS.match(line)) and match[3] != "watch" and match[2] != "leases":
                counted[f"{match[3]} {match[2]}"] += int(float(match[4]))
        return counted


@contextmanager
def _running_operator(plane: ControlPlane, folder: Path) -> Iterator[Operator]:
    (port,) = free_ports(1)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")},
        "KUBECONFIG": str(plane.kubeconfig(user="trimtab-operator")),
        "TRIMTAB_IMAGES": "trimtab:benchmark",
        # Nothing runs, so these are never dialled.
        "TRIMTAB_NATS__SERVERS": "nats://127.0.0.1:1",
        "TRIMTAB_SHARED_NATS_ACCOUNT": "all-pods-trust-one-another",
        "TRIMTAB_OBJECT_STORE__BUCKET": "none",
        "TRIMTAB_PROBES__HOST": "127.0.0.1",
        "TRIMTAB_PROBES__PORT": str(port),
    }
    with (folder / "operator.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "trimtab.operator"], env=environment, stdout=log, stderr=log)
    try:
        _wait_until_ready(process, port)
        yield Operator(process, port=port)
    finally:
        process.terminate()
        process.wait(30)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                if "trimtab_operator_leader 1.0" in answer.read().decode():
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the operator did not start; see its log")


def _job(name: str) -> Object:
    return {
        "metadata": {"name": name},
        "spec": {
            "maxSteps": 10,
            "workflow": {"entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn"},
            "data": {"prompts": [{"name": "train", "jsonl": {"uri": "/data/prompts.jsonl"}}]},
            "policies": [{"name": "solver", "model": {"uri": "/models/tiny"}}],
            "pools": [{"name": "home", "replicas": 1}],
        },
    }


async def _measure(plane: ControlPlane, operator: Operator, *, jobs: int) -> Figures:
    async with KubeClient(load_access(plane.kubeconfig()), user_agent="benchmark") as client:
        spaces = [f"bench-{number}" for number in range(min(jobs, _NAMESPACES))]
        for space in spaces:
            await client.create(NAMESPACES, {"metadata": {"name": space}})
        pods = Reflector(client, PODS, label_selector=labels.JOB)
        watching = asyncio.create_task(pods.run())
        try:
            await pods.synced(timeout_s=30)
            empty_mb, before = operator.memory_mb, operator.requests()
            where = {f"job-{number}": spaces[number % len(spaces)] for number in range(jobs)}
            began = time.monotonic()
            await _apply_all(client, where)
            await _until(lambda: len(pods) >= jobs * _PODS_PER_JOB)
            all_pods_s = time.monotonic() - began
            note(f"{jobs} jobs: {len(pods)} pods after {all_pods_s:.1f} s")
            await _settled(operator)
            spent = operator.requests()
            changes = await _resize(client, pods, where)
            await _settled(operator)
            quiet = operator.requests()
            await asyncio.sleep(_IDLE_S)
            idle = (operator.requests() - quiet).total()
            return Figures(
                jobs=jobs,
                all_pods_s=all_pods_s,
                change_p50_s=statistics.median(changes),
                change_p99_s=_percentile(changes, 0.99),
                requests_per_job=(spent - before).total() / jobs,
                memory_mb=operator.memory_mb - empty_mb,
                idle_requests=idle,
            )
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def _apply_all(client: KubeClient, where: dict[str, str]) -> None:
    gate = asyncio.Semaphore(_APPLIED_AT_ONCE)

    async def apply(name: str, space: str) -> None:
        async with gate:
            body = {"apiVersion": RLJOBS.api_version, "kind": RLJOBS.kind, **_job(name)}
            await client.create(RLJOBS, body, namespace=space)

    await asyncio.gather(*(apply(name, space) for name, space in where.items()))


async def _resize(client: KubeClient, pods: Reflector, where: dict[str, str]) -> list[float]:
    """Pools grow by one, several at once, as an autoscaler would have it: seconds until each new pod is there."""
    sizes: Counter[str] = Counter(dict.fromkeys(where, 1))
    chosen = random.Random(0).choices(sorted(where), k=_CHANGES)
    gate = asyncio.Semaphore(5)
    locks = {name: asyncio.Lock() for name in where}

    async def grow(name: str) -> float:
        async with gate, locks[name]:
            pool, space = names.pool_name(name, "home"), where[name]
            ordinal = sizes[name]
            sizes[name] += 1
            began = time.monotonic()
            await client.patch(ROLLOUT_POOLS, pool, {"spec": {"replicas": sizes[name]}}, namespace=space)
            await _until(lambda: Key(space, names.rollout_pod_name(pool, ordinal)) in pods)
            return time.monotonic() - began

    return list(await asyncio.gather(*(grow(name) for name in chosen)))


async def _settled(operator: Operator) -> None:
    """Until no request was made for a while."""
    before: Counter[str] | None = None
    while (now := operator.requests()) != before:
        before = now
        await asyncio.sleep(3.0)


async def _until(holds: Any) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the operator did not get there")
        await asyncio.sleep(0.01)


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


@click.command()
@click.option("--jobs", "sizes", type=int, multiple=True, default=(1, 100, 1000), show_default=True)
def main(sizes: tuple[int, ...]) -> None:
    """Print one JSON line with the figures."""
    logs_to_stderr()
    measured: dict[int, Figures] = {}
    for jobs in sizes:
        with tempfile.TemporaryDirectory() as folder:
            assets = control_plane_assets()
            with ControlPlane(Path(folder) / "plane", assets=assets) as plane:
                plane.install(custom_resource_definitions())
                with _running_operator(plane, Path(folder)) as operator:
                    measured[jobs] = asyncio.run(_measure(plane, operator, jobs=jobs))
                    note(f"{jobs} jobs: {measured[jobs].shown()}")
    bars: dict[str, Bar] = {}
    if 1000 in measured:
        bars["thousand_jobs_s"] = Bar(measured[1000].all_pods_s, _PEER_THOUSAND_S, at_most=True)
    if 100 in measured:
        bars["change_p99_s_of_100_jobs"] = Bar(measured[100].change_p99_s, 2.0, at_most=True)
    if {1, 1000} <= measured.keys():
        more = measured[1000].idle_requests - measured[1].idle_requests
        bars["idle_requests_more_with_1000_jobs_than_with_1"] = Bar(more, 0, at_most=True)
    report("operator", {f"jobs_{jobs}": figures.shown() for jobs, figures in measured.items()}, bars)


if __name__ == "__main__":
    main()
