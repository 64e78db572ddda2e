"""The engine under contract: the built-in one, or any server by its URL.

`TRIMTAB_ENGINE_URL=http://host:30000 pytest tests/contract/test_generate.py tests/contract/test_control.py` asks one
that runs already. It must be able to read its own model folder again, take 1,000 tokens, and have nobody else's
requests.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from tests.support.contract.engine import Engine
from tests.support.contract.model import make_long_winded_model
from tests.support.rollout.engine_process import EngineProcess


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("TRIMTAB_ENGINE_URL")
    if given:
        yield given
        return
    folder = tmp_path_factory.mktemp("contract")
    make_long_winded_model(folder / "model")
    process = EngineProcess(folder / "model", folder)
    process.start()
    yield process.url
    process.kill()


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    """Running and empty, whatever the test before did."""
    # A connection for each request: SGLang resets one on which it failed, and the request after must not suffer.
    connector = aiohttp.TCPConnector(force_close=True)
    timeout = aiohttp.ClientTimeout(total=300.0)
    async with aiohttp.ClientSession(base_url=url, connector=connector, timeout=timeout) as session:
        engine = Engine(session)
        await engine.wait_healthy()
        await engine.settle()
        yield engine
        await engine.settle()
