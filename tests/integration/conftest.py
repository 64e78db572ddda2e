"""Real NATS and SeaweedFS: one of each for the session, and servers of a test's own that it may kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings


@pytest.fixture(scope="session")
def nats_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsSettings]:
    """With time for a machine on which a server may not answer for seconds."""
    with EmbeddedNats(tmp_path_factory.mktemp("nats")) as server:
        yield server.settings.model_copy(update={"connect_timeout_s": 60.0, "request_timeout_s": 60.0})


@pytest.fixture(scope="session")
def object_store_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStoreSettings]:
    with EmbeddedSeaweed(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server.settings


@pytest.fixture
def own_nats(tmp_path: Path) -> Iterator[EmbeddedNats]:
    with EmbeddedNats(tmp_path / "nats", supervise=False) as server:
        yield server


@pytest.fixture
def own_seaweed(tmp_path: Path) -> Iterator[EmbeddedSeaweed]:
    with EmbeddedSeaweed(tmp_path / "seaweedfs", supervise=False) as server:
        yield server
