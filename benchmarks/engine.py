"""The built-in engine against `transformers.generate` on SmolLM2-135M, same weights, type, threads and machine.

`python -m benchmarks.engine` serves the model in a process of its own and asks it over HTTP. Static batches get the
best of the sizes tried. Both sample at temperature 1; the long-tailed mix counts only the tokens that were asked for.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from benchmarks.engines.served import Swap, served, served_rate, swap_under_load
from benchmarks.engines.static_batches import static_rate
from benchmarks.engines.workload import Request, long_tailed_requests, total_tokens, uniform_requests
from benchmarks.report import Bar, interleaved, logs_to_stderr, note, paired_share, report
from examples.pretrained_model import load
from trimtab.rollout.engines.builtin.sparse_update import write_sparse_update
from trimtab.weights.apply.changes import SparseChange
from trimtab.weights.layout import StateLayout

THREADS = 1
"""More than idle cores slows both down by a factor that depends on the neighbours."""
CONCURRENCIES = (1, 8, 32, 128)
NEW_TOKENS = {1: 32, 8: 32, 32: 32, 128: 16}
ROUNDS = 3
TAIL_REQUESTS, TAIL_MEDIAN, TAIL_LONGEST = 64, 12, 192
TAIL_BATCHES = (8, 32)
SWAPS = 3
CHANGED_SHARE = 0.01


def mix(tokenizer: Tokenizer) -> list[Request]:
    return long_tailed_requests(tokenizer, count=TAIL_REQUESTS, median=TAIL_MEDIAN, longest=TAIL_LONGEST, seed=5)


def uniform_rates(url: str, model: LlamaForCausalLM, tokenizer: Tokenizer) -> dict[int, dict[str, list[float]]]:
    rates = {}
    for count in CONCURRENCIES:
        requests = uniform_requests(tokenizer, count=count, new_tokens=NEW_TOKENS[count], seed=count)
        rates[count] = interleaved(
            {
                "engine": partial(served_rate, url, requests, clients=count),
                "transformers": partial(static_rate, model, requests, batch=count),
            },
            rounds=ROUNDS,
        )
        note(f"{count} at once: {rates[count]} tokens/s")
    return rates


def tailed_rates(url: str, model: LlamaForCausalLM, requests: Sequence[Request]) -> dict[str, list[float]]:
    """The engine with all requests at once, and each size of static batches."""
    contenders: dict[str, Callable[[], float]] = {"engine": partial(served_rate, url, requests, clients=len(requests))}
    contenders |= {f"batches_of_{size}": partial(static_rate, model, requests, batch=size) for size in TAIL_BATCHES}
    rates = interleaved(contenders, rounds=2)
    note(f"long-tailed mix of {total_tokens(requests)} tokens: {rates} tokens/s")
    return rates


def sparse_file(folder: Path, path: Path, *, base_version: str) -> int:
    """An update of a hundredth of all elements, and how many those are."""
    chance = np.random.default_rng(0)
    with (folder / "model.safetensors").open("rb") as file:
        layout = StateLayout.read(file)
        data = np.frombuffer(file.read(), dtype=np.uint8)
    changes, count = [], 0
    for tensor in layout.tensors:
        elements = data[tensor.start : tensor.end].view(np.uint16)
        indices = np.flatnonzero(chance.random(len(elements)) < CHANGED_SHARE)
        changes.append(SparseChange(tensor, indices, elements[indices] ^ np.uint16(1)))
        count += len(indices)
    write_sparse_update(path, changes, base_version=base_version)
    return count


def swap_figures(url: str, tokenizer: Tokenizer, folder: Path, scratch: Path) -> dict[str, object]:
    requests = uniform_requests(tokenizer, count=8, new_tokens=64, seed=77)
    whole = [{"model_path": str(folder), "weight_version": f"w{number}"} for number in range(SWAPS)]
    figures: dict[str, object] = {"whole": _medians(swap_under_load(url, requests, whole))}
    sparse: list[dict[str, Any]] = []
    count = 0
    for number in range(SWAPS):
        path = scratch / f"{number}.safetensors"
        base = f"s{number - 1}" if number else f"w{SWAPS - 1}"
        count = sparse_file(folder, path, base_version=base)
        sparse.append({"model_path": str(path), "load_format": "sparse", "weight_version": f"s{number}"})
    figures["sparse"] = _medians(swap_under_load(url, requests, sparse)) | {"changed_elements": count}
    note(f"swaps under load: {figures}")
    return figures


def _medians(swaps: Sequence[Swap]) -> dict[str, float]:
    return {
        "total_s": round(statistics.median(swap.total_s for swap in swaps), 4),
        "pause_s": round(statistics.median(swap.pause_s for swap in swaps), 5),
    }


def main() -> None:
    logs_to_stderr()
    torch.set_num_threads(THREADS)
    loaded = load()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        loaded.model.bfloat16().save_pretrained(folder)
        # Stored in bf16, computed in float32: what the engine does on a CPU.
        reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with served(folder, threads=THREADS) as url:
            served_rate(url, uniform_requests(loaded.tokenizer, count=4, new_tokens=8, seed=0), clients=4)
            rates = uniform_rates(url, reference, loaded.tokenizer)
            tailed = tailed_rates(url, reference, mix(loaded.tokenizer))
            swaps = swap_figures(url, loaded.tokenizer, folder, Path(scratch))
    medians = {
        count: {name: round(statistics.median(each), 1) for name, each in by_name.items()}
        for count, by_name in rates.items()
    }
    tails = {name: round(statistics.median(each), 1) for name, each in tailed.items()}
    best_tail = max((name for name in tails if name != "engine"), key=lambda name: tails[name])
    best = max(CONCURRENCIES, key=lambda count: medians[count]["transformers"])
    report(
        "engine",
        {
            "model": "SmolLM2-135M, float32",
            "cores": os.cpu_count(),
            "threads": THREADS,
            "tokens_per_s": medians,
            "long_tailed_tokens_per_s": tails,
            "swap_under_load": swaps,
        },
        {
            f"times_transformers_at_its_best_batch_{best}": Bar(
                paired_share(rates[best]["engine"], rates[best]["transformers"]), 1.0
            ),
            "times_transformers_long_tailed": Bar(paired_share(tailed["engine"], tailed[best_tail]), 3.0),
        },
    )


if __name__ == "__main__":
    main()
