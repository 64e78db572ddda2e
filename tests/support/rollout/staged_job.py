"""One job with a stage on a real bus: groups of rows and tasks go in, a worker runs, columns are read back."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from tests.support.fabric.wire_specimens import short_trajectory
from tests.support.polling import within
from tests.support.rollout.beside import beside
from tests.support.rollout.job import QUICK
from tests.support.rollout.unused_claims import unused_claims
from trimtab.api.stage import Stage
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.kv_watch import keys
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.row_claims import RowClaims
from trimtab.fabric.wire.column import Column, ColumnHeader, parse_column_headers
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.header import headers
from trimtab.fabric.wire.quarantine import QuarantinedTask
from trimtab.fabric.wire.spans import Producer, Span
from trimtab.fabric.wire.stage import StageRow, StageTask
from trimtab.fabric.wire.trajectory import Finish, Scored, Trajectory, TurnReward
from trimtab.rollout.policy.freshness import Freshness, VersionLine
from trimtab.rollout.stages.columns import ColumnStore
from trimtab.rollout.stages.computed import Computation
from trimtab.rollout.stages.custom import OwnColumn
from trimtab.rollout.stages.group import GroupReader
from trimtab.rollout.stages.metrics import StageWorkMetrics
from trimtab.rollout.stages.plugin import PluginCalls
from trimtab.rollout.stages.reward import OwnReward
from trimtab.rollout.stages.row_filter import OwnFilter
from trimtab.rollout.stages.server import StageServer, StageWork
from trimtab.rollout.stages.turn_rewards import OwnTurnRewards
from trimtab.rollout.stages.worker import StageWorker
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.worker.deliveries import HandBacks
from trimtab.rollout.worker.episodes import Origin
from trimtab.rollout.worker.quarantine import Quarantine
from trimtab.rollout.workflows.containment import Containment
from trimtab.rollout.workflows.source_location import WorkflowSource

STAGE = "own"
_KINDS: Mapping[str, Callable[[PluginCalls], Computation]] = {
    "Custom": OwnColumn,
    "Reward": OwnReward,
    "TurnRewards": OwnTurnRewards,
    "Filter": OwnFilter,
}
_LETTERS = Tokenizer(encode=lambda text: [ord(one) for one in text], decode=lambda ids: "".join(map(chr, ids)))


def row(group: str, index: int, *, answer: str, reward: float = 0.0) -> Trajectory:
    """A prompt of two letters and an answer, of one turn for each letter."""
    return short_trajectory(
        trajectory_id=f"{group}.{index}.0",
        group_id=group,
        group_index=index,
        outcome=Scored(reward=reward, finish=Finish.STOP),
        token_ids=np.array([ord(letter) for letter in "2+" + answer], dtype=np.int32),
        logprobs=np.full(len(answer), -0.5, dtype=np.float32),
        spans=(Span(2, Producer.PROMPT), Span(len(answer), Producer.MODEL, 4)),
        turns=len(answer),
        turn_rewards=tuple(TurnReward(number, 1, 0.0) for number in range(len(answer))),
    )


class StagedJob:
    def __init__(self, bus: Bus, topology: JobTopology) -> None:
        self.bus = bus
        self.topology = topology
        self.metrics = Metrics()
        """Of its latest worker."""

    @classmethod
    async def open(cls, bus: Bus) -> StagedJob:
        topology = JobTopology("t", f"s{uuid.uuid4().hex[:12]}", stages=(STAGE,))
        await declare_job(bus, topology, deadline_s=60.0)
        return cls(bus, topology)

    async def add(self, *rows: Trajectory, **changes: Any) -> StageTask:
        """A group of these rows, and a task about it."""
        places = []
        for one in rows:
            stored = await publish(
                self.bus,
                self.topology.trajectory_subject(one.policy),
                encode(one),
                message_id=one.message_id,
                headers=headers(one),
                deadline_s=60.0,
            )
            places.append(StageRow(sequence=stored.sequence, trajectory_id=one.trajectory_id, reward=0.25))
        fields: dict[str, Any] = {
            "job": self.topology.job,
            "stage": STAGE,
            "policy": "solver",
            "group_id": rows[0].group_id,
            "prompt_id": "p0",
            "prompt": {"prompt": "2+", "answer": "4"},
            "rows": tuple(places),
            "created_at": 1.0,
        }
        task = StageTask(**fields | changes)
        subject = self.topology.stage_subject(STAGE)
        await publish(self.bus, subject, encode(task), message_id=task.task_id, deadline_s=60.0)
        return task

    async def columns(self) -> list[tuple[ColumnHeader, Column]]:
        name = self.topology.columns.name
        info = await api_call(self.bus, f"STREAM.INFO.{name}", deadline_s=60.0)
        last = int(info["state"]["last_seq"])
        if last == 0:
            return []
        stored = (await get_messages(self.bus, name, range(1, last + 1), deadline_s=60.0)).complete()
        return [(parse_column_headers(one.headers), decode(one.payload, Column)) for one in stored.values()]

    async def tasks_left(self) -> int:
        info = await api_call(self.bus, f"STREAM.INFO.{self.topology.stage_tasks.name}", deadline_s=60.0)
        return int(info["state"]["messages"])

    async def settled(self) -> bool:
        return await self.tasks_left() == 0

    async def quarantined(self) -> dict[str, QuarantinedTask]:
        bucket = KeyValue(self.bus, self.topology.quarantine)
        found = [decode((await bucket.get(key)).value, QuarantinedTask) for key in await keys(bucket, deadline_s=60.0)]
        return {entry.task_id: entry for entry in found}

    def worker(
        self,
        plugin: Any,
        *,
        computes: str = "Custom",
        per: str = "Group",
        timeout_s: int = 60,
        max_deliveries: int = 3,
        grace_s: float = 30.0,
        lines: Mapping[str, VersionLine] | None = None,
        lease_s: float = 600.0,
        claims: RowClaims | None = None,
        bus: Bus | None = None,
    ) -> StageWorker:
        used = bus or self.bus
        stage = Stage.model_validate(
            {
                "name": STAGE,
                "computes": computes,
                "plugin": {"entrypoint": "a:B"},
                "per": per,
                "timeoutSeconds": timeout_s,
            }
        )
        calls = PluginCalls(plugin, Containment(), per=per, tokenizers={"solver": _LETTERS}, role=None, seed=0)
        computation = _KINDS[computes](calls)
        origin = Origin(worker="w0", pool="p", engine="builtin")
        self.metrics = Metrics()
        metrics = StageWorkMetrics(self.metrics)
        runs = itertools.count()
        kept = claims or unused_claims()
        server = StageServer(
            StageWork(stage=stage, computation=computation, source=WorkflowSource(plugin)),
            GroupReader(used, self.topology, kept),
            ColumnStore(
                used,
                self.topology,
                kept,
                metrics,
                origin,
                clock=lambda: 7.0,
                new_run=lambda: f"{uuid.uuid4().hex[:8]}{next(runs)}",
                deadline_s=60.0,
                backoff=QUICK.publish_backoff,
            ),
            Quarantine(KeyValue(used, self.topology.quarantine), origin, job=self.topology.job, clock=lambda: 7.0),
            HandBacks(KeyValue(used, self.topology.hand_backs), queue="stages", deadline_s=60.0),
            Freshness(lines or {}, max_staleness=2),
            metrics,
            lease_s=lease_s,
            max_deliveries=max_deliveries,
            clock=time.monotonic,
            wall_clock=lambda: 7.0,
            timings=QUICK,
        )
        return StageWorker(
            used, self.topology, server, ceiling=2, lease_s=600.0, grace_s=grace_s, clock=time.monotonic, timings=QUICK
        )


@asynccontextmanager
async def computing(worker: StageWorker) -> AsyncIterator[asyncio.Event]:
    """The worker runs inside, and is drained on the way out; set the event to drain it before."""
    stopping = asyncio.Event()
    async with beside(worker.run(stopping)) as run:
        try:
            yield stopping
        finally:
            stopping.set()
            await within(run, 60.0)
