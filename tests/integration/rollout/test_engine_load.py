"""A worker takes what its engine bears: a real engine with a small batch, and one with a small queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.support.polling import eventually
from tests.support.rollout.beside import beside
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.job import GROUP_SIZE, Job, working
from tests.support.rollout.speakers import role
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.policy.sampler import PolicySampler
from trimtab.rollout.policy.version_gate import VersionGate
from trimtab.rollout.worker.concurrency import Concurrency, LoadWatch
from trimtab.rollout.worker.worker import Worker
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.team import Tokenizer

CEILING = 8
TASKS = 24


@asynccontextmanager
async def watched_worker(
    job: Job, models: Path, folder: Path, *, max_running: int, max_queued: int
) -> AsyncIterator[tuple[Worker, PolicySampler]]:
    process = EngineProcess(models / "0", folder, max_running=max_running, max_queued=max_queued)
    process.start()
    try:
        await process.serves()
        async with EngineClient(process.url, request_timeout_s=300.0) as engine:
            gate = VersionGate()
            sampler = PolicySampler(engine, gate)
            concurrency = Concurrency(ceiling=CEILING, requests_per_task=GROUP_SIZE)
            tokenizer = Tokenizer.of(AutoTokenizer.from_pretrained(models / "0"))
            roles = {"solver": role(sampler, tokenizer=tokenizer, max_new_tokens=50)}
            worker = job.worker(SingleTurn(), roles, concurrency=concurrency)
            watch = LoadWatch("solver", engine, sampler, gate, concurrency, in_flight=lambda: worker.load, every_s=0.1)
            async with beside(watch.run()), working(worker):
                yield worker, sampler
    finally:
        process.kill()


@pytest.mark.slow
async def test_a_worker_takes_fewer_tasks_where_its_engine_queues(job: Job, models: Path, tmp_path: Path) -> None:
    async with watched_worker(job, models, tmp_path, max_running=4, max_queued=256) as (worker, sampler):
        assert worker.allowance == CEILING
        await job.issue(TASKS)
        await eventually(lambda: worker.allowance <= 2, timeout_s=60.0)
        await eventually(lambda: worker.completed == TASKS * GROUP_SIZE, timeout_s=120.0)
        assert worker.allowance >= 1
        assert sampler.overloads == 0


@pytest.mark.slow
async def test_a_worker_takes_fewer_tasks_where_its_engine_refuses(job: Job, models: Path, tmp_path: Path) -> None:
    async with watched_worker(job, models, tmp_path, max_running=4, max_queued=6) as (worker, sampler):
        await job.issue(TASKS)
        await eventually(lambda: worker.allowance <= CEILING // 2, timeout_s=60.0)
        await eventually(lambda: worker.completed == TASKS * GROUP_SIZE, timeout_s=120.0)
        assert sampler.overloads > 0
        assert not worker.failures
