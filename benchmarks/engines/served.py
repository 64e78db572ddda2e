"""The built-in engine as its own process, asked over HTTP by so many clients at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.engines.workload import Request
from trimtab.embedded.ports import free_ports
from trimtab.rollout.engines.client import EngineClient

_START_TIMEOUT_S = 300.0
_REQUEST_TIMEOUT_S = 1800.0
_STOP_TIMEOUT_S = 20.0
_UPDATE_TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Swap:
    """One weight update under load."""

    total_s: float
    """From the request to its answer."""
    pause_s: float
    """Of which nothing was computed."""


@contextmanager
def served(model: Path, *, threads: int, arguments: Sequence[str] = ("--max-cached-tokens=8192",)) -> Iterator[str]:
    """Its URL, once it is healthy."""
    (port,) = free_ports(1)
    command = [
        sys.executable, "-m", "trimtab.rollout.engines.builtin", f"--model-path={model}", f"--port={port}",
        f"--threads={threads}", *arguments,
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr, env=environment) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            asyncio.run(_wait_healthy(url))
            yield url
        finally:
            process.terminate()
            process.wait(_STOP_TIMEOUT_S)


async def _wait_healthy(url: str) -> None:
    async with EngineClient(url, request_timeout_s=_REQUEST_TIMEOUT_S) as client:
        await client.wait_healthy(timeout_s=_START_TIMEOUT_S)


def served_rate(url: str, requests: Sequence[Request], *, clients: int) -> float:
    """Tokens a second with so many requests under way."""
    return asyncio.run(_rate(url, requests, clients))


async def _rate(url: str, requests: Sequence[Request], clients: int) -> float:
    gate = asyncio.Semaphore(clients)
    timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(base_url=url, timeout=timeout, connector=connector) as session:

        async def one(number: int, request: Request) -> int:
            sampling = {"max_new_tokens": request.new_tokens, "sampling_seed": number, "ignore_eos": True}
            body = {"input_ids": request.prompt, "sampling_params": sampling, "return_logprob": True}
            async with gate, session.post("/generate", json=body) as response:
                response.raise_for_status()
                return len((await response.json())["output_ids"])

        started = time.monotonic()
        counts = await asyncio.gather(*(one(number, request) for number, request in enumerate(requests)))
        took = time.monotonic() - started
    return sum(counts) / took


def swap_under_load(url: str, requests: Sequence[Request], updates: Sequence[dict[str, Any]]) -> list[Swap]:
    """The updates one after the other, while the requests are generated."""
    return asyncio.run(_swaps(url, requests, updates))


async def _swaps(url: str, requests: Sequence[Request], updates: Sequence[dict[str, Any]]) -> list[Swap]:
    timeout = aiohttp.ClientTimeout(total=_UPDATE_TIMEOUT_S)
    async with aiohttp.ClientSession(base_url=url, timeout=timeout) as session:
        load = asyncio.create_task(_rate(url, requests, len(requests)))
        swaps = []
        for update in updates:
            started = time.monotonic()
            async with session.post("/update_weights_from_disk", json=update) as response:
                answer = await response.json()
            if response.status != 200:
                raise RuntimeError(f"the engine refused an update: {answer}")
            pause = float(answer["message"].split()[-2])
            swaps.append(Swap(total_s=time.monotonic() - started, pause_s=pause))
        await load
    return swaps
