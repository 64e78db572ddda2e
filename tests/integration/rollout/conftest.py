"""A tiny model with random weights, and the engine as the process that a pod runs."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from examples.quickstart.make import make_model, make_tokenizer
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.job import Job
from tests.support.rollout.speakers import EchoSampler, role
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.settings import NatsSettings
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.workflows.team import Role


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `0`, `1` and `2`: the same model with the weights of three seeds."""
    folder = tmp_path_factory.mktemp("models")
    for seed in range(3):
        make_model(folder / str(seed), seed=seed)
        make_tokenizer(folder / str(seed))
    return folder


@pytest.fixture(scope="session")
def steps(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Path]:
    """Folders of versions 0 to 8, as a trainer makes them: each differs from the one before in a few of its weights, by
    enough to be told apart.
    """
    folder = tmp_path_factory.mktemp("steps")
    made = {0: models / "0"}
    torch.manual_seed(7)
    for version in range(1, 9):
        made[version] = folder / str(version)
        shutil.copytree(made[version - 1], made[version])
        tensors = load_file(made[version] / "model.safetensors")
        for tensor in tensors.values():
            where = torch.rand(tensor.shape) < 0.02
            tensor[where] += torch.randn(int(where.sum())) * 0.3
        save_file(tensors, made[version] / "model.safetensors", metadata={"format": "pt"})
    return made


@pytest.fixture(scope="module")
def engine_process(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    process = EngineProcess(models / "0", tmp_path_factory.mktemp("engine"))
    process.start()
    yield process
    process.kill()


@pytest.fixture
async def engine(engine_process: EngineProcess, models: Path) -> AsyncIterator[EngineClient]:
    """The module's engine, running and with the weights it began with, whatever the test before did."""
    await engine_process.serves()
    async with EngineClient(engine_process.url, request_timeout_s=300.0) as client:
        await client.update_weights_from_disk(models / "0", weight_version="0", timeout_s=60.0)
        await client.resume(timeout_s=60.0)
        yield client
        await client.resume(timeout_s=60.0)


@pytest.fixture
async def bus(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_settings, name="test") as connected:
        yield connected


@pytest.fixture
async def job(bus: Bus) -> Job:
    return await Job.open(bus)


@pytest.fixture
def roles() -> Mapping[str, Role]:
    return {"solver": role(EchoSampler())}
