"""Books of jobs without models, with what a small job does not come to: snapshots, stages, replay, a curator."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.dataflow.stage_worker import serve_stages
from tests.support.dataflow.stages import stage
from tests.support.polling import patiently
from trimtab.api.job import RLJob
from trimtab.api.validation import parse
from trimtab.dataflow.ledger.journal import Journal
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.stream_copy import StreamCopy, copy_stream, restore_stream
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.lease import BatchLease

KINDS: dict[str, dict[str, Any]] = {
    "staged": {
        "stages": (stage("reference"), stage("grade", "Reward")),
        "data": {"curator": {"curriculum": {}}},
    },
    "replayed": {
        "data": {
            "replay": {"ratio": 0.5, "maxUses": 3, "maxAge": 4},
            "curator": {"greso": {}},
            "filter": {"zeroAdvantage": "Drop"},
        },
    },
}
_STEPS = 33
_DURABLE_EVERY = 5
_PROMPTS = 20
_DEADLINE_S = 60.0
_SMALL_JOURNAL = partial(Journal, compact_after_bytes=600)


async def write(folder: Path, settings: NatsSettings) -> None:
    for kind, fields in KINDS.items():
        target = folder / "books" / kind
        target.mkdir(parents=True)
        async with simulation(settings, target, make_journal=_SMALL_JOURNAL, **fields) as sim:
            prompts = [json.dumps({"prompt": f"p{number}", "difficulty": number}) for number in range(_PROMPTS)]
            (target / "prompts.jsonl").write_text("\n".join(prompts) + "\n")
            async with at_work(sim), sim.service() as service, running(service), patiently(_DEADLINE_S):
                await sim.train(steps=range(_STEPS), attempt=1, durable_every=_DURABLE_EVERY, seen={})
                held = {step: await rows_of(sim, step, attempt=1) for step in range(_STEPS - _STEPS % 5, _STEPS)}
            copies = [
                await _copied(sim.bus, spec.name, target / f"{number}.stream")
                for number, spec in enumerate(sim.topology.streams)
            ]
        manifest = sim.job.model_dump(mode="json", by_alias=True, exclude_none=True)
        (target / "job.yaml").write_text(yaml.safe_dump(manifest))
        facts = {"steps": _STEPS, "held": held, "streams": copies}
        (target / "books.json").write_text(json.dumps(facts, indent=1) + "\n")


async def rows_of(sim: Simulation, step: int, *, attempt: int) -> list[str]:
    """The ids of those that the step is granted."""
    lease = await sim.lease(step, attempt=attempt)
    assert isinstance(lease, BatchLease)
    return sorted(sample.trajectory_id for sample in lease.samples)


@asynccontextmanager
async def at_work(sim: Simulation) -> AsyncIterator[None]:
    """Workers of all that the job has, as long as the block."""
    chance = random.Random(1)
    stages = [serve_stages(sim.bus, sim.topology, sim.stages, chance=chance)] if sim.stages else []
    async with running(sim.work(), *stages):
        yield


@asynccontextmanager
async def read(source: Path, settings: NatsSettings, folder: Path) -> AsyncIterator[tuple[Simulation, dict[str, Any]]]:
    """The job as it was left, on a server that has nothing of that name, and what was known of it."""
    facts = json.loads((source / "books.json").read_text())
    shutil.copy(source / "prompts.jsonl", folder)
    job = parse(yaml.safe_load((source / "job.yaml").read_text()))
    assert isinstance(job, RLJob)
    async with await Bus.connect(settings, name="released") as bus:
        for number, copy in enumerate(facts["streams"]):
            known = StreamCopy(config=copy["config"], state=copy["state"])
            await restore_stream(bus, known, source / f"{number}.stream", deadline_s=_DEADLINE_S)
        yield Simulation(settings=settings, folder=folder, job=job, bus=bus), facts


async def _copied(bus: Bus, name: str, target: Path) -> dict[str, Any]:
    copy = await copy_stream(bus, name, target, deadline_s=_DEADLINE_S)
    return {"config": copy.config, "state": copy.state}
