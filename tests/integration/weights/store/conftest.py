"""A store below a prefix that no other test uses."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from tests.support.weights.shelf import Shelf
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import ObjectStoreSettings


@pytest.fixture
async def store(object_store_settings: ObjectStoreSettings) -> AsyncIterator[ObjectStore]:
    settings = object_store_settings.model_copy(update={"prefix": f"t/{uuid.uuid4().hex}"})
    async with ObjectStore(settings) as opened:
        yield opened


@pytest.fixture
async def shelf(store: ObjectStore) -> Shelf:
    return await Shelf(store).claim()
