"""A training step on a GPU: a dense model of 1.7 billion random weights, packed sequences of mixed lengths to 16,384.

`python -m benchmarks.training.gpu_step` needs torch and transformers, and neither NATS nor a store.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.random_model import qwen3, write_weights
from benchmarks.report import Bar, logs_to_stderr, note, report
from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import StepTotals
from trimtab.trainer.batch import Row, sole_row
from trimtab.trainer.learner import Learner
from trimtab.trainer.network.gpu_attention import attend, rounded_up

_PEAK_FLOPS = 989e12
_STEP_TOKENS = 131_072
PACK_TOKENS = 36_864
_LONGEST = 16_384
_WARM_UP_STEPS = 3
_STEPS = 8
_SHAPE = qwen3(layers=28)
_POLICY = {
    "name": "solver",
    "model": {"uri": "model"},
    "algorithm": {"name": "dapo", "optimizer": {"learningRate": 1e-6}},
    "sampling": {"maxTokens": _LONGEST},
    "trainer": {"dtype": "bfloat16", "microBatchTokens": PACK_TOKENS, "gradientCheckpointing": False},
}


def step_rows(random: np.random.Generator) -> list[Row]:
    """Lengths are log-normal around 900, with a mean near 1,500; a prompt of up to 200 tokens is not trained."""
    rows: list[Row] = []
    left = _STEP_TOKENS
    while left > 0:
        length = min(left, int(np.clip(random.lognormal(6.8, 1.0), 64, _LONGEST)))
        mask = np.arange(length) >= min(length // 4, 200)
        rows.append(
            Row(
                key=len(rows),
                token_ids=random.integers(0, _SHAPE.vocab_size, length).astype(np.int32),
                logprobs=np.full(length, -np.log(_SHAPE.vocab_size), dtype=np.float32),
                mask=mask,
                versions=np.zeros(length, dtype=np.int64),
                advantages=np.full(length, random.normal(), dtype=np.float32),
                episode=sole_row(len(rows), mask),
            )
        )
        left -= length
    return rows


def model_flops(rows: list[Row], *, parameters: int) -> float:
    """What the step must compute: attention to what came before only, the head for trained tokens only."""
    head = _SHAPE.vocab_size * _SHAPE.hidden_size
    width = _SHAPE.num_hidden_layers * _SHAPE.num_attention_heads * _SHAPE.head_dim
    lengths = [len(row.token_ids) for row in rows]
    return (
        6.0 * (parameters - head) * sum(lengths)
        + 6.0 * head * sum(row.trained_tokens for row in rows)
        + 6.0 * width * sum(length * length for length in lengths)
    )


def attention_error() -> float:
    """Of the gradients, against float32 attention of each sequence by itself, relative to the largest."""
    torch.manual_seed(0)
    lengths = [3_001, 2_048, 700, 64, 1]
    q, k, v = _states(sum(lengths), dtype=torch.float32)
    slope = torch.randn_like(q)
    parts = []
    start = 0
    for length in lengths:
        end = start + length
        seen = scaled_dot_product_attention(
            q[start:end].transpose(0, 1)[None],
            k[start:end].transpose(0, 1)[None],
            v[start:end].transpose(0, 1)[None],
            is_causal=True,
            enable_gqa=True,
        )
        parts.append(seen[0].transpose(0, 1))
        start = end
    exact = torch.autograd.grad(torch.cat(parts), (q, k, v), slope)
    half = [states.detach().bfloat16().requires_grad_() for states in (q, k, v)]
    out = attend(half[0], half[1], half[2], torch.tensor(lengths), scale=_SHAPE.head_dim**-0.5)
    ours = torch.autograd.grad(out, half, slope.bfloat16())
    return max(float((a.float() - b).abs().max() / b.abs().max()) for a, b in zip(ours, exact, strict=True))


def idle_share(learner: Learner, rows: list[Row]) -> float:
    """Of a step's wall time, the share in which the GPU does nothing."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as traced:
        began = time.perf_counter()
        _step(learner, rows)
        wall_s = time.perf_counter() - began
    spans = sorted(
        (event.time_range.start, event.time_range.end) for event in traced.events() if event.device_type.name == "CUDA"
    )
    busy_us = end = 0.0
    for first, last in spans:
        busy_us += max(0.0, last - max(first, end))
        end = max(end, last)
    return 1 - busy_us / 1e6 / wall_s


def measure() -> tuple[dict[str, object], dict[str, Bar]]:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29711", "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("cpu:gloo,cuda:nccl")
    try:
        return _measured()
    finally:
        dist.destroy_process_group()


def _measured() -> tuple[dict[str, object], dict[str, Bar]]:
    error = attention_error()
    with tempfile.TemporaryDirectory() as folder:
        learner = _learner(Path(folder))
    parameters = sum(parameter.numel() for parameter in learner.network.parameters())
    random = np.random.default_rng(0)
    planning_s = _plan_lengths()
    began = time.perf_counter()
    _step(learner, step_rows(random))
    first_s = time.perf_counter() - began
    for _ in range(_WARM_UP_STEPS - 1):
        _step(learner, step_rows(random))
    rates, uses = [], []
    for number in range(_STEPS):
        rows = step_rows(random)
        began = time.perf_counter()
        _step(learner, rows)
        elapsed = time.perf_counter() - began
        rates.append(sum(len(row.token_ids) for row in rows) / elapsed)
        uses.append(model_flops(rows, parameters=parameters) / elapsed / _PEAK_FLOPS)
        note(f"step {number}: {elapsed:.3f} s, longest {max(len(row.token_ids) for row in rows)}, MFU {uses[-1]:.3f}")
    idle = idle_share(learner, step_rows(random))
    figures: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "parameters": parameters,
        "tokens_per_step": _STEP_TOKENS,
        "tokens_per_second": round(statistics.median(rates)),
        "planning_seconds": round(planning_s, 1),
        "first_step_seconds": round(first_s, 1),
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "mfu_of_steps": [round(use, 3) for use in uses],
    }
    bars = {
        "mfu": Bar(statistics.median(uses), 0.5),
        "gpu_idle_share_of_a_step": Bar(idle, 0.03, at_most=True),
        "attention_gradient_error": Bar(error, 0.02, at_most=True),
    }
    return figures, bars


def _learner(folder: Path) -> Learner:
    write_weights(folder, _SHAPE, seed=0)
    return Learner(Policy.model_validate(_POLICY), model_path=folder, device=torch.device("cuda"))


def _plan_lengths() -> float:
    """cuDNN plans each rounded length once, when it first comes: over the first dozens of steps, or here."""
    began = time.perf_counter()
    for length in sorted({rounded_up(length) for length in range(2_048, _LONGEST + 1)}):
        q, k, v = _states(length, dtype=torch.bfloat16)
        torch.autograd.grad(attend(q, k, v, torch.tensor([length]), scale=1.0), (q, k, v), torch.ones_like(q))
    torch.cuda.synchronize()
    return time.perf_counter() - began


def _states(tokens: int, *, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values."""
    heads = (_SHAPE.num_attention_heads, _SHAPE.num_key_value_heads or 0, _SHAPE.num_key_value_heads or 0)
    q, k, v = (
        torch.randn(tokens, number, _SHAPE.head_dim, device="cuda", dtype=dtype, requires_grad=True) for number in heads
    )
    return q, k, v


def _step(learner: Learner, rows: list[Row]) -> None:
    trained = sum(row.trained_tokens for row in rows)
    tokens = sum(len(row.token_ids) for row in rows)
    learner.accumulate(rows)
    learner.update(
        StepTotals(samples=len(rows), groups=len(rows), episodes=len(rows), tokens=tokens, trained_tokens=trained)
    )
    torch.cuda.synchronize()


def main() -> None:
    logs_to_stderr()
    figures, bars = measure()
    report("trainer.gpu_step", figures, bars)


if __name__ == "__main__":
    main()
