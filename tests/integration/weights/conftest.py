"""Where every test of weights publishes and pulls."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.weights.weight_site import D, WeightSite
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings


@pytest.fixture
async def site(
    nats_settings: NatsSettings, object_store_settings: ObjectStoreSettings, tmp_path: Path
) -> AsyncIterator[WeightSite]:
    name = f"w{uuid.uuid4().hex[:12]}"
    settings = object_store_settings.model_copy(update={"prefix": f"t/{name}"})
    async with await Bus.connect(nats_settings, name="test") as bus, ObjectStore(settings) as store:
        pointers = await KeyValue.declare(bus, JobTopology("t", name).weights, deadline_s=D)
        async with AsyncExitStack() as closing:
            yield WeightSite(settings, store, pointers, tmp_path, closing)
