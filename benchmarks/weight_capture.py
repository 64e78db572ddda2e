"""How long a trainer on a GPU is held up by a publication: finding what changed there, against reading the weights to
main memory and comparing them there. Needs a GPU. `python -m benchmarks.weight_capture [--billions 1.5]`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import torch

from benchmarks.report import Bar, logs_to_stderr, note, report
from trimtab.trainer.device_shadow import DeviceShadow
from trimtab.trainer.model_weights import ModelWeights
from trimtab.weights.baseline import Baseline
from trimtab.weights.codec.blocks import Codec, encode_change
from trimtab.weights.codec.change import Change

_ROUNDS = 5
_HIDDEN, _FEED_FORWARD, _VOCABULARY = 2048, 6144, 151_936
_CHANGED = 0.01
_PROBE_BYTES = 4 << 30


def _model(billions: float, device: torch.device) -> torch.nn.Module:
    """Matrices of the shapes that a model of this size has, with their usual magnitudes."""
    layer = 4 * _HIDDEN * _HIDDEN + 3 * _HIDDEN * _FEED_FORWARD
    layers = max(1, round((billions * 1e9 - _HIDDEN * _VOCABULARY) / layer))
    model = torch.nn.ModuleDict({"embed": torch.nn.Linear(_HIDDEN, _VOCABULARY, bias=False, device=device)})
    for number in range(layers):
        for name, shape in (("q", (_HIDDEN, _HIDDEN)), ("k", (_HIDDEN, _HIDDEN)), ("v", (_HIDDEN, _HIDDEN)),
                            ("o", (_HIDDEN, _HIDDEN)), ("gate", (_FEED_FORWARD, _HIDDEN)),
                            ("up", (_FEED_FORWARD, _HIDDEN)), ("down", (_HIDDEN, _FEED_FORWARD))):  # fmt: skip
            model[f"{name}{number}"] = torch.nn.Linear(shape[1], shape[0], bias=False, device=device)
    return model


@torch.no_grad()
def _update(model: torch.nn.Module) -> None:
    """Moves one weight in a hundred by more than its rounding."""
    for parameter in model.parameters():
        chosen = torch.rand_like(parameter) < _CHANGED
        parameter.add_(chosen * parameter.abs() * 0.01)


def _seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


@click.command()
@click.option("--billions", type=float, default=1.5, show_default=True, help="Weights of the model.")
def main(billions: float) -> None:
    logs_to_stderr()
    device, threads = torch.device("cuda"), os.cpu_count() or 1
    model = _model(billions, device)
    weights = ModelWeights(model, dtype=torch.bfloat16)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    shadow = DeviceShadow(weights.layout, tensors, published=torch.bfloat16)
    size = weights.layout.data_bytes
    here: dict[str, list[float]] = {name: [] for name in ("compare", "to_host", "in_memory", "encode", "advance")}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(threads) as executor:
        baseline = Baseline(weights.layout, Path(folder), executor)
        baseline.fill(weights)
        baseline.hash_all()

        def encode(item: tuple[int, Change]) -> tuple[int, tuple[bytes, int]]:
            index, change = item
            block = baseline.layout.blocks[index]
            encoded = encode_change(baseline.block(block), change, block.element, codec=Codec.AUTO)
            return index, (baseline.digest_after(block, change), len(encoded.payload))

        for turn in range(_ROUNDS + 1):
            _update(model)
            began = time.perf_counter()
            compared = baseline.capture(weights)
            in_memory = time.perf_counter() - began
            torch.cuda.synchronize()
            began = time.perf_counter()
            changes = shadow.take(tensors)
            taken = time.perf_counter()
            captured = baseline.take(changes)
            arrived = time.perf_counter()
            assert captured.changes.keys() == compared.changes.keys()
            encoded = dict(executor.map(encode, captured.changes.items()))
            done = time.perf_counter()
            digests = list(baseline.digests)
            for index, (digest, _) in encoded.items():
                digests[index] = digest
            baseline.advance(captured, digests)
            advanced = time.perf_counter()
            times = (taken - began, arrived - taken, in_memory, done - arrived, advanced - done)
            for seconds, kept in zip(times, here.values(), strict=True):
                if turn:  # the first has to compile
                    kept.append(seconds)
            sent = sum(payload for _, payload in encoded.values())
            note(f"compared in {taken - began:.4f} s, encoded in {done - arrived:.2f} s: {sent} bytes")
    copied = torch.empty(_PROBE_BYTES, dtype=torch.uint8, device=device)
    source = torch.empty_like(copied)
    copies = [_seconds(lambda: copied.copy_(source)) for _ in range(_ROUNDS)]
    bandwidth = 2 * _PROBE_BYTES / min(copies)
    median = {name: statistics.median(times) for name, times in here.items()}
    report(
        "weight_capture",
        {
            "bytes": size,
            "terabytes_of_weights_per_second": round(size / median["compare"] / 1e12, 3),
            # Masters are twice as wide as what is published, and both are read.
            "limit_of_memory_s": round(3 * size / bandwidth, 5),
            **{f"{name}_s": round(value, 5) for name, value in median.items()},
        },
        {
            "update_waits_s": Bar(median["compare"], 0.010, at_most=True),
            "speed_up_over_memory": Bar(median["in_memory"] / median["compare"], 10.0),
        },
    )


if __name__ == "__main__":
    main()
