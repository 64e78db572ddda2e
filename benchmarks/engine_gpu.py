"""The built-in engine on a GPU, with CUDA graphs and without, against what reading its weights would take: a model of
1.5 billion random weights, asked over HTTP. `python -m benchmarks.engine_gpu` needs a GPU.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import aiohttp
import torch

from benchmarks.engines.served import served, served_rate
from benchmarks.engines.workload import Request
from benchmarks.gpu.random_model import random_prompt, write_model
from benchmarks.report import Bar, interleaved, logs_to_stderr, note, paired_share, report

_AT_ONCE = (1, 32, 128)
_PROMPT_TOKENS, _NEW_TOKENS = 200, 256
_ROUNDS = 3
_PROBE_BYTES = 4 << 30
_COMPARED = 16
_LIMITS = ("--max-total-tokens=262144", "--max-cached-tokens=65536")


def _requests(count: int, *, seed: int) -> list[Request]:
    chance = random.Random(seed)
    return [
        Request(prompt=tuple(random_prompt(chance, tokens=_PROMPT_TOKENS)), new_tokens=_NEW_TOKENS)
        for _ in range(count)
    ]


def _bytes_per_s() -> float:
    """How fast this GPU reads, by a copy, which writes as much."""
    one = torch.empty(_PROBE_BYTES, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(one)
    other.copy_(one)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(4):
        other.copy_(one)
    torch.cuda.synchronize()
    return 4 * 2 * _PROBE_BYTES / (time.perf_counter() - began)


async def _first_logprobs(url: str, requests: Sequence[Request]) -> list[float]:
    """Of each request's two first tokens, all asked for at once: the second is decoded."""
    async with aiohttp.ClientSession(base_url=url) as session:

        async def ask(number: int, request: Request) -> list[float]:
            sampling = {"max_new_tokens": 2, "sampling_seed": number, "temperature": 0.0, "ignore_eos": True}
            body = {"input_ids": request.prompt, "sampling_params": sampling, "return_logprob": True}
            async with session.post("/generate", json=body) as response:
                response.raise_for_status()
                answer = await response.json()
                return [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]

        answers = await asyncio.gather(*(ask(number, request) for number, request in enumerate(requests)))
    return [logprob for answer in answers for logprob in answer]


def main() -> None:
    logs_to_stderr()
    limit = _bytes_per_s()
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch) / "model"
        weights = write_model(folder, seed=0)
        began = time.monotonic()
        graphs = stack.enter_context(served(folder, threads=4, arguments=_LIMITS))
        start_s = time.monotonic() - began
        plain = stack.enter_context(served(folder, threads=4, arguments=(*_LIMITS, "--disable-cuda-graph")))
        compared = _requests(_COMPARED, seed=1)
        one, other = (asyncio.run(_first_logprobs(url, compared)) for url in (graphs, plain))
        difference = max(abs(mine - theirs) for mine, theirs in zip(one, other, strict=True))
        rates = {}
        for count in _AT_ONCE:
            requests = _requests(count, seed=count)
            rates[count] = interleaved(
                {
                    "graphs": partial(served_rate, graphs, requests, clients=count),
                    "plain": partial(served_rate, plain, requests, clients=count),
                },
                rounds=_ROUNDS,
            )
            note(f"{count} at once: {rates[count]} tokens/s")
    most = max(_AT_ONCE)
    report(
        "engine_gpu",
        {
            "device": torch.cuda.get_device_name(),
            "weights": weights,
            "start_seconds": round(start_s, 1),
            "tokens_per_s": {
                count: {name: round(statistics.median(each)) for name, each in by_name.items()}
                for count, by_name in rates.items()
            },
            "limit_by_reading_weights_tokens_per_s": {
                count: round(count * limit / (2 * weights)) for count in _AT_ONCE
            },
        },
        {
            f"times_without_graphs_at_{most}": Bar(paired_share(rates[most]["graphs"], rates[most]["plain"]), 3.0),
            "largest_difference_of_logprobs": Bar(difference, 0.1, at_most=True),
        },
    )


if __name__ == "__main__":
    main()
