"""Where the processes of a job under fire meet: its manifest, its server, small files of numbers, and their notes."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trimtab.api.job import RLJob
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.pod import read_job
from trimtab.fabric.settings import NatsSettings

JOB = "storm"
NAMESPACE = "default"
STEP_S = {"solver": 0.05, "judge": 0.1, "critic": 0.2}
"""How long a step of each policy takes once its rows are there."""
RANKS = 2
GROUP = 4
BATCH = 16
STALENESS = 4
MIN_TOKENS = 2
"""Shorter samples are filtered out."""
_PROMPTS = 500
STAGES: list[dict[str, Any]] = [
    {"name": "reference", "computes": "Logprobs", "policy": "critic"},
    {
        "name": "grade",
        "computes": "Reward",
        "plugin": {"entrypoint": "own:Grade"},
        "needs": ["reference"],
        "rows": ["solver"],
    },
    {
        "name": "values",
        "computes": "Custom",
        "plugin": {"entrypoint": "own:Values"},
        "needs": ["grade"],
        "rows": ["solver", "judge"],
    },
]
"""Of every policy's rows one stage is asked at least; of the solver's three in a line."""


def manifest(*, stages: bool = False) -> dict[str, Any]:
    return {
        "apiVersion": "rl.trimtab.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": JOB},
        "spec": {
            "workflow": {
                "entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn",
                "roles": [{"name": policy, "policy": policy} for policy in STEP_S],
            },
            "data": {
                "prompts": [{"name": "train", "jsonl": {"uri": "prompts.jsonl"}}],
                "groupSize": GROUP,
                "batchSize": BATCH,
                "maxStaleness": STALENESS,
                "filter": {"length": {"minTokens": MIN_TOKENS}},
            },
            "autoscaling": {"windowSteps": 5},
            "policies": [{"name": policy, "model": {"uri": "model"}} for policy in STEP_S],
            "pools": [{"name": "local", "replicas": 1}],
            "maxSteps": 1_000_000,
            **({"stages": STAGES} if stages else {}),
        },
    }


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A row as the payload itself tells it."""

    sequence: int
    trajectory_id: str
    group_id: str
    group_index: int
    oldest_version: int
    part: int = 0
    run: str = "0"
    columns: tuple[tuple[str, int], ...] = ()
    """Stages, and where the columns lie that were joined to it."""


class Stored(msgspec.Struct, frozen=True, tag=True):
    """A worker was told by the server that this trajectory is safe."""

    policy: str
    group_id: str
    group_index: int
    sequence: int
    part: int = 0


class Dying(msgspec.Struct, frozen=True, tag=True):
    """A worker is about to die with a task whose trajectories are all stored."""

    task_id: str


class Leased(msgspec.Struct, frozen=True, tag=True):
    """A rank has fetched the rows of its lease."""

    policy: str
    step: int
    rank: int
    attempt: int
    rows: tuple[Row, ...]


class Durable(msgspec.Struct, frozen=True, tag=True):
    """A trainer was told that this step and those before it will never be asked for again."""

    policy: str
    step: int
    attempt: int


class Superseded(msgspec.Struct, frozen=True, tag=True):
    """A rank that should be dead has learnt that a newer attempt is there."""

    policy: str
    attempt: int


class Computed(msgspec.Struct, frozen=True, tag=True):
    """A stage worker was told by the server that this column is safe."""

    stage: str
    group_id: str
    run: str
    sequence: int


Note = Stored | Dying | Leased | Durable | Superseded | Computed


@dataclass(frozen=True)
class Number:
    """A file with a number that is always whole."""

    path: Path

    def read(self) -> int:
        return int(self.path.read_bytes()) if self.path.exists() else 0

    def write(self, value: int) -> None:
        # A name of its own: a rank that should be dead may still write beside its successor.
        writing = self.path.with_suffix(f".{os.getpid()}")
        writing.write_text(str(value))
        writing.replace(self.path)


@dataclass(frozen=True)
class Checkpoints:
    """One file per step, as real ones have: a rank that should be dead can add one, and never hide a newer."""

    folder: Path

    def newest(self) -> int:
        return max((int(path.name) for path in self.folder.iterdir()), default=0)

    def add(self, step: int) -> None:
        (self.folder / str(step)).touch()


@dataclass(frozen=True)
class Site:
    """Passed to every process of one test."""

    nats: NatsSettings
    folder: Path
    stages: bool = False
    """Whether the job has some."""
    replicas: int = 1
    """Of its streams."""
    compact_after_bytes: int = 8 << 10
    """Of the ledger: small enough that two minutes see it many times."""

    def lay_out(self) -> None:
        checkpoints = [self.checkpoints(policy).folder for policy in STEP_S]
        for folder in (self.folder, self._notes, self._logs, self.folder / "steps", *checkpoints):
            folder.mkdir()
        self.job_file.write_text(json.dumps(manifest(stages=self.stages)))
        prompts = (json.dumps({"prompt": f"p{number}"}) for number in range(_PROMPTS))
        (self.folder / "prompts.jsonl").write_text("\n".join(prompts))

    @property
    def job_file(self) -> Path:
        return self.folder / "job.json"

    @property
    def job(self) -> RLJob:
        return read_job(self.job_file)

    @property
    def topology(self) -> JobTopology:
        stages = tuple(one["name"] for one in STAGES) if self.stages else ()
        return JobTopology(NAMESPACE, JOB, stages=stages, replicas=self.replicas)

    @property
    def _notes(self) -> Path:
        return self.folder / "notes"

    @property
    def _logs(self) -> Path:
        return self.folder / "logs"

    def version(self, policy: str) -> Number:
        """The newest weights of a policy."""
        return Number(self.folder / f"version-{policy}")

    def checkpoints(self, policy: str) -> Checkpoints:
        """Named after the step that a trainer resumes at."""
        return Checkpoints(self.folder / f"checkpoints-{policy}")

    def step(self, policy: str, *, attempt: int, rank: int) -> Number:
        """One more than the step whose rows a rank has: where the ranks of an attempt wait for one another."""
        return Number(self.folder / "steps" / f"{policy}-{attempt}-{rank}")

    def note(self, name: str, note: Note) -> None:
        """A line is one write, so a killed process leaves whole lines."""
        descriptor = os.open(self._notes / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(descriptor, msgspec.json.encode(note) + b"\n")
        os.close(descriptor)

    def notes(self) -> list[Note]:
        lines = (line for path in sorted(self._notes.iterdir()) for line in path.read_bytes().splitlines())
        return [msgspec.json.decode(line, type=Note) for line in lines]

    def write_output_to(self, name: str) -> None:
        """Whatever this process says goes to a log of its own."""
        descriptor = os.open(self._logs / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(descriptor, stream.fileno())
        os.close(descriptor)

    def log(self, name: str) -> str:
        path = self._logs / f"{name}.log"
        return path.read_text() if path.exists() else ""
