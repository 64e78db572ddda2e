"""Agents that ask side by side, in a process of their own: `python -m benchmarks.agents.load` reads a Load as JSON and
prints the seconds that every request took.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

_TIMEOUT_S = 600.0


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine reads where nobody renders."""

    question: Sequence[int]
    heard: Sequence[int]
    """After every answer."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    """Of chat completions, or of the engine's generate."""
    keys: Sequence[str]
    """One for each agent."""
    turns: int
    think_s: float = 0.0
    """What an agent takes between its turns, on average."""
    max_tokens: int | None = None
    """On average: every answer has another length, so that agents do not ask in step."""
    tools: Sequence[dict[str, Any]] = ()
    question: str = "What is in the archive?"
    answer: str = "nothing to be seen there, go on"
    """Of every tool, and of the user where there was no call."""
    tokens: Tokens | None = None
    """For agents that ask the engine itself."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    seconds: Sequence[float]
    took_s: float
    sampled: int


async def run(load: Load) -> Loaded:
    began = time.perf_counter()
    seconds: list[float] = []
    agent = _agent if load.tokens is None else _agent_of_tokens
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        sampled = await asyncio.gather(
            *(agent(session, load, key, seconds, chance=random.Random(number)) for number, key in enumerate(load.keys))
        )
    return Loaded(seconds=seconds, took_s=time.perf_counter() - began, sampled=sum(sampled))


async def _agent(
    session: aiohttp.ClientSession, load: Load, key: str, seconds: list[float], *, chance: random.Random
) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": load.question}]
    sampled = 0
    for _ in range(load.turns):
        await asyncio.sleep(chance.uniform(0.0, 2 * load.think_s))
        body: dict[str, Any] = {"model": "solver", "messages": messages}
        if load.tools:
            body["tools"] = load.tools
        if load.max_tokens is not None:
            body["max_tokens"] = _length(load.max_tokens, chance)
        read = await _asked(session, load.url, body, seconds, headers=headers)
        sampled += read["usage"]["completion_tokens"]
        said = {name: value for name, value in read["choices"][0]["message"].items() if value is not None}
        calls = said.get("tool_calls") or []
        heard = [{"role": "tool", "tool_call_id": call["id"], "content": load.answer} for call in calls]
        messages += [said, *(heard or [{"role": "user", "content": load.answer}])]
    return sampled


async def _agent_of_tokens(
    session: aiohttp.ClientSession, load: Load, key: str, seconds: list[float], *, chance: random.Random
) -> int:
    """As many turns of as many tokens."""
    assert load.tokens is not None
    assert load.max_tokens is not None
    ids = list(load.tokens.question)
    sampled = 0
    for _ in range(load.turns):
        await asyncio.sleep(chance.uniform(0.0, 2 * load.think_s))
        sampling = {
            "max_new_tokens": _length(load.max_tokens, chance),
            "sampling_seed": chance.getrandbits(31),
            "ignore_eos": True,
        }
        body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True}
        said = (await _asked(session, load.url, body, seconds, headers={}))["output_ids"]
        sampled += len(said)
        ids += [*said, *load.tokens.heard]
    return sampled


def _length(mean: int, chance: random.Random) -> int:
    return chance.randint(mean // 2, mean + mean // 2)


async def _asked(
    session: aiohttp.ClientSession,
    url: str,
    body: Mapping[str, Any],
    seconds: list[float],
    *,
    headers: Mapping[str, str],
) -> Any:
    data = msgspec.json.encode(body)
    asked = time.perf_counter()
    async with session.post(url, data=data, headers={"Content-Type": "application/json", **headers}) as response:
        answer = await response.read()
    seconds.append(time.perf_counter() - asked)
    if response.status != 200:
        raise RuntimeError(f"{url} answered {response.status}: {answer[:500]!r}")
    return msgspec.json.decode(answer)


async def in_a_process(load: Load) -> Loaded:
    """Away from what is measured."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.agents.load", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(_TIMEOUT_S):
        output, _ = await process.communicate(msgspec.json.encode(load))
    if process.returncode != 0:
        raise RuntimeError(f"the agents ended with {process.returncode}")
    return msgspec.json.decode(output, type=Loaded)


if __name__ == "__main__":
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=Load)
    print(json.dumps(msgspec.to_builtins(asyncio.run(run(wanted)))))
