"""A real SGLang on the CPU. `make test-sglang` asks for these tests by TRIMTAB_TEST_SGLANG; nothing else collects them:
they need 7 GB of packages and minutes of both cores.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from examples.sglang.environment import sglang_interpreter
from examples.sglang.make import make_model
from tests.support.contract.engine import Engine
from tests.support.sglang.launched import LaunchedSGLang

collect_ignore_glob = [] if os.environ.get("TRIMTAB_TEST_SGLANG") else ["test_*.py"]


@pytest.fixture(scope="session")
def interpreter() -> Path:
    return sglang_interpreter()


@pytest.fixture(scope="session")
def smollm2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M in bf16, with its tokenizer."""
    folder = tmp_path_factory.mktemp("smollm2") / "model"
    make_model(folder)
    return folder


@pytest.fixture(scope="module")
def served(smollm2_folder: Path, interpreter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an SGLang that serves SmolLM2."""
    launched = LaunchedSGLang(
        smollm2_folder,
        interpreter=interpreter,
        folder=tmp_path_factory.mktemp("served"),
        arguments=("--max-total-tokens=8192",),
    )
    asyncio.run(launched.wait_ready())
    yield launched.url
    launched.stop()


@pytest.fixture
async def engine(served: str) -> AsyncIterator[Engine]:
    async with aiohttp.ClientSession(base_url=served, timeout=aiohttp.ClientTimeout(total=200.0)) as session:
        yield Engine(session)
