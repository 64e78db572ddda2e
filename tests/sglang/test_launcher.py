"""The launcher with a real SGLang under it: it becomes ready, comes back when it dies, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.contract.model import make_long_winded_model
from tests.support.polling import eventually
from tests.support.sglang.launched import START_S, LaunchedSGLang, wait_gone
from trimtab.fabric.pod import EXIT_MISCONFIGURED

_GONE_S = 20.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launcher") / "model"
    make_long_winded_model(folder)
    return folder


@pytest.fixture
def launched(model: Path, interpreter: Path, tmp_path: Path) -> Iterator[LaunchedSGLang]:
    launched = LaunchedSGLang(model, interpreter=interpreter, folder=tmp_path)
    yield launched
    launched.stop()


async def _version(url: str) -> str:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30.0)) as session,
        session.get(url + "/model_info") as response,
    ):
        return str((await response.json())["weight_version"])


async def test_it_comes_back_after_its_scheduler_was_killed_and_ends_without_a_trace(launched: LaunchedSGLang) -> None:
    await launched.wait_ready()
    assert await _version(launched.url) == "0"
    first = launched.family()
    scheduler = launched.scheduler()
    assert scheduler is not None
    scheduler.kill()
    assert wait_gone(first, timeout_s=START_S) == []

    await launched.wait_ready()
    assert launched.scheduler() is not None
    second = launched.family()
    assert launched.stop() == 0
    assert wait_gone(second, timeout_s=_GONE_S) == []


async def test_nothing_of_sglang_outlives_a_launcher_that_was_killed(launched: LaunchedSGLang) -> None:
    await eventually(lambda: launched.scheduler() is not None, timeout_s=START_S)
    family = launched.family()
    assert len(family) >= 3
    launched.process.send_signal(signal.SIGKILL)
    assert wait_gone(family, timeout_s=_GONE_S) == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"interpreter": "/no/such/python"}, "/no/such/python cannot be run"),
        ({"interpreter": sys.executable}, "No package metadata was found for sglang"),
        ({"arguments": ("--port=1",)}, "--port is not yours to set"),
        ({"arguments": ("--no-such-argument",)}, "SGLang refused an argument"),
    ],
    ids=["missing interpreter", "interpreter without SGLang", "argument of ours", "unknown argument"],
)
def test_what_cannot_work_ends_it_with_a_reason(
    model: Path, interpreter: Path, tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    given: dict[str, object] = {"interpreter": interpreter, "arguments": ()} | changes
    launched = LaunchedSGLang(
        model,
        interpreter=Path(str(given["interpreter"])),
        folder=tmp_path,
        arguments=tuple(map(str, given["arguments"])),  # type: ignore[call-overload]
    )
    try:
        assert launched.process.wait(120) == EXIT_MISCONFIGURED
    except subprocess.TimeoutExpired:
        launched.process.kill()
        raise
    assert complaint in launched.log.read_text()
