"""`python -m benchmarks.gateway`: what agents pay for asking through the gateway, and what trainers are spared by it.

Latency is measured with an engine stand-in that answers at once, throughput with the built-in engine, both against
asking without the gateway; rows and tokens on recorded sessions against one row per call and against rendering anew.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import psutil
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.agents.load import Load, Loaded, Tokens, in_a_process
from benchmarks.agents.recorded import Trained, compared
from benchmarks.agents.stand_in import FAMILY, TOKENIZER, TOOLS, AtOnce, direct, gateway, opened
from benchmarks.engines.served import served
from benchmarks.report import Bar, logs_to_stderr, note, paired_share, report
from tests.support.gateway.tokenizers import pretrained
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.gateway.gateway import Gateway
from trimtab.rollout.policy.sampler import PolicySampler
from trimtab.rollout.policy.version_gate import VersionGate

_SESSIONS = 64
_TURNS = 8
_THINK_S = 1.0
_MANY = 1000
_MANY_TURNS = 3
_NEW_TOKENS = 64
_STEADY_TURNS = 4
_REQUEST_TIMEOUT_S = 600.0


async def latencies() -> tuple[Loaded, Loaded, float]:
    """Through the gateway, and without it; and the processor time that the gateway takes for a request."""
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(gateway())
        url, keys = await opened(running, AtOnce(), sessions=_SESSIONS, stack=stack)
        plain = await stack.enter_async_context(direct())
        load = Load(url=url, keys=keys, turns=_TURNS, think_s=_THINK_S, tools=TOOLS)
        await in_a_process(Load(url=plain, keys=keys, turns=1, tools=TOOLS))
        began = time.process_time()
        through = await in_a_process(load)
        cpu_s = (time.process_time() - began) / len(through.seconds)
        without = await in_a_process(Load(url=plain, keys=keys, turns=_TURNS, think_s=_THINK_S, tools=TOOLS))
    return through, without, cpu_s


async def through_gateway(engine_url: str, load: Load) -> Loaded:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(EngineClient(engine_url, request_timeout_s=_REQUEST_TIMEOUT_S))
        running = await stack.enter_async_context(gateway())
        url, keys = await opened(running, PolicySampler(engine, VersionGate()), sessions=_SESSIONS, stack=stack)
        return await in_a_process(msgspec.structs.replace(load, url=url, keys=keys))


async def without_gateway(engine_url: str, load: Load) -> Loaded:
    """The same turns, by agents that know what tokens their messages are."""
    render = TOKENIZER.render
    assert render is not None
    asked: list[dict[str, object]] = [{"role": "user", "content": load.question}]
    question = render(asked, {})
    longer = render([*asked, {"role": "assistant", "content": ""}, {"role": "user", "content": load.answer}], {})
    tokens = Tokens(question=TOKENIZER.encode(question), heard=TOKENIZER.encode(longer.removeprefix(question)))
    return await in_a_process(msgspec.structs.replace(load, url=f"{engine_url}/generate", tokens=tokens))


def throughput(rounds: int) -> tuple[float, dict[str, list[float]]]:
    """Tokens a second of one engine under steady load. Each round has another question: what an engine has seen is in
    its cache."""
    rates: dict[str, list[float]] = {"gateway": [], "direct": []}
    ways = {"gateway": through_gateway, "direct": without_gateway}
    with tempfile.TemporaryDirectory() as folder:
        model = _model(Path(folder))
        with served(model, threads=1, arguments=(f"--max-running-requests={_SESSIONS}",)) as url:
            for number in range(2 * rounds + 2):
                way = "gateway" if number % 4 in (0, 3) else "direct"
                question = (
                    f"Tell me of the archive, part {number}. " + "It is old, and nobody knows what is in it. " * 4
                )
                load = Load(
                    url="",
                    keys=[str(session) for session in range(_SESSIONS)],
                    turns=_STEADY_TURNS,
                    max_tokens=_NEW_TOKENS,
                    question=question,
                )
                loaded = asyncio.run(ways[way](url, load))
                note(f"{way}: {loaded.sampled} tokens in {loaded.took_s:.1f} s")
                if number >= 2:
                    rates[way].append(loaded.sampled / loaded.took_s)
    return paired_share(rates["gateway"], rates["direct"]), rates


def _model(folder: Path) -> Path:
    """Large enough that an engine has something to do: on one core it samples some hundred tokens a second."""
    tokenizer = pretrained(FAMILY)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


async def memory() -> dict[str, float]:
    """Of this process, in MiB: with so many sessions at once, and when as many others have come and gone."""
    process = psutil.Process()
    after: list[float] = []
    open_mib: list[float] = []
    async with gateway() as running:
        await _wave(running, sessions=_SESSIONS)
        before = _rss(process)
        for _ in range(3):
            open_mib.append(await _wave(running, sessions=_MANY))
            after.append(_rss(process))
    return {
        "per_session_kib": (open_mib[0] - before) * 1024 / _MANY,
        "second_and_third_over_first": max(open_mib[1:]) / open_mib[0],
        "before_mib": before,
        "open_mib": max(open_mib),
        "after_mib": after[-1],
    }


async def _wave(running: Gateway, *, sessions: int) -> float:
    """All are open when it measures."""
    async with AsyncExitStack() as stack:
        url, keys = await opened(running, AtOnce(), sessions=sessions, stack=stack)
        await in_a_process(Load(url=url, keys=keys, turns=_MANY_TURNS, tools=TOOLS))
        return _rss(psutil.Process())


def _rss(process: psutil.Process) -> float:
    gc.collect()
    return float(process.memory_info().rss) / (1 << 20)


def _of(trained: Trained, sessions: int) -> dict[str, float]:
    return {
        "rows": round(trained.rows / sessions, 2),
        "tokens": round(trained.tokens / sessions, 1),
        "sampled": round(trained.sampled / sessions, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="of throughput")
    parser.add_argument("--recorded", type=int, default=30, help="sessions")
    arguments = parser.parse_args()
    logs_to_stderr()
    began = time.monotonic()
    through, without, cpu_s = asyncio.run(latencies())
    base = statistics.median(without.seconds)
    p50 = (statistics.median(through.seconds) - base) * 1000
    p99 = (statistics.quantiles(through.seconds, n=100)[98] - base) * 1000
    note(f"added latency: p50 {p50:.1f} ms, p99 {p99:.1f} ms; without the gateway {base * 1000:.1f} ms")
    used = asyncio.run(memory())
    note(f"memory: {used}")
    rows = {
        f"{family}{'' if faithful else ', histories changed'}": asyncio.run(
            compared(family, sessions=arguments.recorded, steps=8, faithful=faithful)
        )
        for family in ("qwen2.5", "qwen3")
        for faithful in (True, False)
    }
    note(f"rows: {rows}")
    share, rates = throughput(arguments.rounds)
    plain = rows["qwen2.5"]
    report(
        "gateway",
        {
            "sessions": _SESSIONS,
            "direct_ms": round(base * 1000, 2),
            "processor_ms_per_request": round(cpu_s * 1000, 2),
            "tokens_per_second": {way: [round(rate, 1) for rate in found] for way, found in rates.items()},
            "memory": {name: round(value, 2) for name, value in used.items()},
            "per_episode": {
                kind: {way: _of(trained, arguments.recorded) for way, trained in ways.items()}
                for kind, ways in rows.items()
            },
            "seconds": round(time.monotonic() - began),
        },
        {
            "added latency p50, ms": Bar(p50, 5.0, at_most=True),
            "added latency p99, ms": Bar(p99, 15.0, at_most=True),
            "throughput, share of the engine asked directly": Bar(share, 0.97),
            "rows over one row per call": Bar(plain["gateway"].rows / plain["row_per_call"].rows, 0.5, at_most=True),
            "rows over re-templating": Bar(plain["gateway"].rows / plain["re_templated"].rows, 1.0, at_most=True),
            "sampled tokens trained, of all": Bar(plain["gateway"].sampled / plain["row_per_call"].sampled, 1.0),
            "memory of 1,000 sessions, MiB each": Bar(used["per_session_kib"] / 1024, 1.0, at_most=True),
            "memory of later waves over the first": Bar(used["second_and_third_over_first"], 1.1, at_most=True),
        },
    )


if __name__ == "__main__":
    main()
