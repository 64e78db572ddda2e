"""The production manifests learn as AstraFlow's appendix says that its runs did."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.fabric.pod import read_job

_FOLDER = Path(__file__).parents[3] / "examples" / "production"


@pytest.mark.parametrize(
    ("name", "threshold", "rate", "tokens", "context", "steps"),
    [("qwen3-8b", 0.01, 5e-6, 14_000, 16_384, 800), ("qwen3-14b", 0.002, 3e-6, 18_000, 20_480, 1200)],
)
def test_they_have_the_papers_figures(
    name: str, threshold: float, rate: float, tokens: int, context: int, steps: int
) -> None:
    spec = read_job(_FOLDER / f"{name}.yaml").spec
    (policy,) = spec.policies
    algorithm, optimizer = policy.algorithm, policy.algorithm.optimizer
    assert (algorithm.name, algorithm.m2_threshold, algorithm.updates_per_batch) == ("m2po", threshold, 4)
    assert (algorithm.kl.coefficient, algorithm.normalize_batch_advantages) == (1e-3, True)
    assert (optimizer.learning_rate, optimizer.beta1, optimizer.beta2) == (rate, 0.9, 0.999)
    assert (optimizer.weight_decay, optimizer.max_grad_norm) == (0.01, 1.0)
    assert (algorithm.schedule.type, algorithm.schedule.warmup_steps) == ("Constant", 0)
    assert (policy.sampling.temperature, policy.sampling.max_tokens) == (1.0, tokens)
    assert (spec.data.batch_size, spec.data.group_size, spec.data.max_prompt_tokens) == (256, 8, 2000)
    assert (spec.max_steps, spec.data.filter.zero_advantage) == (steps, "Drop")
    assert all(f"--context-length={context}" in (pool.engine.args or ()) for pool in spec.pools)
    assert policy.trainer.micro_batch_tokens >= context
