"""A tiny model, and a store and a bus of a test's own."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from examples.quickstart.make import make_model
from tests.support.template_process import TemplateProcess, template_process
from tests.support.trainer.forked_ranks import prepare
from tests.support.trainer.one_trainer import Trainer
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, seed=0)
    return folder


@pytest.fixture
def store_settings(object_store_settings: ObjectStoreSettings) -> ObjectStoreSettings:
    return object_store_settings.model_copy(update={"prefix": f"t/{uuid.uuid4().hex}"})


@pytest.fixture
async def store(store_settings: ObjectStoreSettings) -> AsyncIterator[ObjectStore]:
    async with ObjectStore(store_settings) as opened:
        yield opened


@pytest.fixture
async def bus(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_settings, name="test") as connected:
        yield connected


@pytest.fixture(scope="session")
def rank_template() -> Iterator[TemplateProcess]:
    with template_process(prepare) as template:
        yield template


@pytest.fixture
def topology() -> JobTopology:
    return JobTopology("t", f"l{uuid.uuid4().hex[:12]}")


@pytest.fixture
def make(
    model: Path, nats_settings: NatsSettings, store_settings: ObjectStoreSettings, topology: JobTopology, tmp_path: Path
) -> Callable[..., Trainer]:
    return lambda **given: Trainer(model, nats_settings, store_settings, topology, tmp_path / uuid.uuid4().hex, **given)
