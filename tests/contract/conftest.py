"""The engine under contract: the built-in one, or any server by its URL.

`TRIMTAB_ENGINE_URL=http://host:30000 pytest tests/contract/test_{generate,stream,control,score}.py` asks one that runs
already. It must be able to read its own model folder again, take 1,000 tokens, and have nobody else's
requests.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import aiohttp
import pytest

from tests.support.contract.engine import Engine
from tests.support.contract.model import make_long_winded_model
from tests.support.rollout.engine_process import EngineProcess


@dataclass(frozen=True)
class Server:
    url: str
    ended: Callable[[], int | None]
    """Its exit code; None while it runs, as one of somebody else's always does."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    given = os.environ.get("TRIMTAB_ENGINE_URL")
    if given:
        yield Server(given, lambda: None)
        return
    folder = tmp_path_factory.mktemp("contract")
    make_long_winded_model(folder / "model")
    process = EngineProcess(folder / "model", folder)
    process.start()
    yield Server(process.url, process.ended)
    process.kill()


@pytest.fixture(scope="session")
def url(server: Server) -> str:
    return server.url


@pytest.fixture
async def engine(server: Server) -> AsyncIterator[Engine]:
    """Running and empty, whatever the test before did."""
    # A connection for each request: SGLang resets one on which it failed, and the request after must not suffer.
    connector = aiohttp.TCPConnector(force_close=True)
    timeout = aiohttp.ClientTimeout(total=300.0)
    async with aiohttp.ClientSession(base_url=server.url, connector=connector, timeout=timeout) as session:
        engine = Engine(session, ended=server.ended)
        await engine.wait_healthy()
        await engine.settle()
        yield engine
        await engine.settle()
