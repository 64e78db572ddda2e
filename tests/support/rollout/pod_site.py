"""Where worker pods of a test meet: the manifest they read, the environment they are started with, what they tell."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from trimtab.embedded.ports import free_ports
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import (
    EngineSettings,
    LogSettings,
    NatsSettings,
    ObjectStoreSettings,
    PodSettings,
    ProbeSettings,
    WeightSettings,
    environment_for,
)
from trimtab.rollout.__main__ import RolloutPodSettings

NAMESPACE = "t"
POLICY = "solver"
POOL = "local"


@dataclass(frozen=True, kw_only=True)
class PodSite:
    """One job with one policy. `model` is the folder that its tokenizer and first weights are in."""

    folder: Path
    job: str
    model: Path
    engine_url: str
    nats: NatsSettings
    store: ObjectStoreSettings
    public_key: str
    engine: dict[str, Any]
    workflow: dict[str, Any]
    group_size: int = 2
    max_tokens: int = 4
    max_concurrency: int = 32
    grace_s: int = 10
    max_staleness: int = 4
    tasks: dict[str, int] = field(default_factory=lambda: {"leaseSeconds": 10, "maxDeliveries": 2})
    api_key: str | None = None

    @property
    def topology(self) -> JobTopology:
        return JobTopology(NAMESPACE, self.job)

    def lay_out(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "model").symlink_to(self.model)
        (self.folder / "job.json").write_text(json.dumps(self._manifest()))

    def log(self, pod: str) -> Path:
        return self.folder / f"{pod}.log"

    def lines(self, pod: str) -> list[dict[str, Any]]:
        """What a pod has logged so far. A line that is being written is left for later."""
        whole = self.log(pod).read_text().splitlines(keepends=True)
        return [json.loads(line) for line in whole if line.startswith("{") and line.endswith("\n")]

    def environment(self, pod: str) -> tuple[dict[str, str], int]:
        """For `python -m trimtab.rollout`, and the port of its probes."""
        (port,) = free_ports(1)
        settings = RolloutPodSettings(
            pod=PodSettings(namespace=NAMESPACE, job=self.job, role="rollout", name=pod, pool=POOL),
            nats=self.nats,
            object_store=self.store,
            weights=WeightSettings(public_keys=(self.public_key,)),
            logs=LogSettings(format="json"),
            probes=ProbeSettings(host="127.0.0.1", port=port),
            job_file=self.folder / "job.json",
            engines=f"{POLICY}={self.engine_url}",
            engine=EngineSettings(api_key=None if self.api_key is None else SecretStr(self.api_key)),
            scratch=self.folder / f"scratch-{pod}",
        )
        return environment_for(settings), port

    def _manifest(self) -> dict[str, Any]:
        return {
            "apiVersion": "rl.trimtab.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": self.job, "namespace": NAMESPACE},
            "spec": {
                "workflow": self.workflow,
                "data": {
                    "prompts": [{"name": "train", "jsonl": {"uri": "prompts.jsonl"}}],
                    "groupSize": self.group_size,
                    "batchSize": self.group_size,
                    "maxStaleness": self.max_staleness,
                    "tasks": self.tasks,
                },
                "policies": [{"name": POLICY, "model": {"uri": "model"}, "sampling": {"maxTokens": self.max_tokens}}],
                "pools": [
                    {
                        "name": POOL,
                        "replicas": 1,
                        "engine": self.engine,
                        "maxConcurrency": self.max_concurrency,
                        "gracePeriodSeconds": self.grace_s,
                    }
                ],
                "maxSteps": 1,
            },
        }


def openai_engine(model: Path) -> dict[str, Any]:
    """The built-in engine by its OpenAI surface, under the name that it gives its model there."""
    return {"name": "openai", "url": "http://127.0.0.1", "model": str(model), "requestTimeoutSeconds": 60}


async def metric(port: int, name: str, **labels: str) -> float | None:
    """A metric of a pod; None if it has none of this name and labels, or nobody answers."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60.0)) as session,
            session.get(f"http://127.0.0.1:{port}/metrics") as response,
        ):
            text = await response.text()
    except (aiohttp.ClientError, TimeoutError):
        return None
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"trimtab_rollout_{name}" and labels.items() <= sample.labels.items():
                return float(sample.value)
    return None
