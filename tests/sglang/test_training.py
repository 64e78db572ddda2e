"""A short training run whose pool is a launched SGLang: the manifest of the example, with fewer steps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import psutil
import pytest
import torch
import yaml
from safetensors.torch import load_file

from examples.sglang.make import link_environment, make_prompts
from examples.streams import read_streams
from tests.support.sglang.launched import START_S
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.pod import read_job
from trimtab.operator.local.job import LocalJob
from trimtab.rollout.policy.version_gate import position_of

_EXAMPLE = Path(__file__).parents[2] / "examples" / "sglang" / "job.yaml"
_STEPS = 3
_RUN_S = START_S + 900.0


@pytest.fixture
def job_file(smollm2_folder: Path, tmp_path: Path) -> Path:
    manifest = yaml.safe_load(_EXAMPLE.read_text())
    manifest["spec"]["maxSteps"] = _STEPS
    # Without staleness each step is trained on samples of the weights before it, so all of them must be served.
    manifest["spec"]["data"]["maxStaleness"] = 0
    (tmp_path / "model").symlink_to(smollm2_folder)
    make_prompts(tmp_path / "prompts.jsonl")
    link_environment(tmp_path / "environment")
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return path


async def _served_versions(job: LocalJob, ended: asyncio.Event) -> list[str]:
    """What the engine itself says it serves, from its first answer to the end of the job."""
    seen: list[str] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session:
        while not ended.is_set():
            version = await _version_at(session, _engine_port(job))
            if version is not None and version not in seen:
                seen.append(version)
            await asyncio.sleep(0.1)
    return seen


async def _version_at(session: aiohttp.ClientSession, port: int | None) -> str | None:
    try:
        async with session.get(f"http://127.0.0.1:{port}/model_info") as response:
            return str((await response.json())["weight_version"])
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None


def _engine_port(job: LocalJob) -> int | None:
    """The executor chose it, and the launcher was told."""
    pids = job.executor.pids() if job.watch is not None else {}
    for container, pid in pids.items():
        if container.endswith("/engine-solver"):
            for argument in psutil.Process(pid).cmdline():
                if argument.startswith("--port="):
                    return int(argument.removeprefix("--port="))
    return None


@pytest.mark.timeout(_RUN_S + 60)
async def test_a_job_trains_on_a_launched_sglang_with_live_weight_updates(job_file: Path) -> None:
    state = job_file.parent / ".trimtab" / "sglang"
    state.mkdir(parents=True)
    job = LocalJob(read_job(job_file), job_file=job_file, folder=state)
    ended = asyncio.Event()
    watching = asyncio.create_task(_served_versions(job, ended))
    try:
        async with asyncio.timeout(_RUN_S):
            succeeded = await job.run(asyncio.Event())
    finally:
        ended.set()
    assert succeeded
    served = await watching
    positions = [position_of(label) for label in served]
    assert positions == sorted(position for position in positions if position is not None)
    assert {position.version for position in positions if position is not None} >= set(range(_STEPS))

    streams = await read_streams(state, JobTopology("default", "sglang"))
    sampled_with = {(header.oldest_version, header.newest_version) for header in streams.headers}
    assert sampled_with >= {(version, version) for version in range(_STEPS)}

    (copy,) = (state / "pods").glob("*/weights/solver/copy/model.safetensors")
    given, first = load_file(copy), load_file(job_file.parent / "model" / "model.safetensors")
    assert any(not torch.equal(given[name], first[name]) for name in first)
