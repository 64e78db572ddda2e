"""Evaluation tasks on a real engine: greedy where the pool samples, and marked as what they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.polling import eventually
from tests.support.rollout.job import GROUP_SIZE, Job, working
from trimtab.api.sampling import Sampling
from trimtab.fabric.wire.purpose import Purpose
from trimtab.fabric.wire.sampling import sampling_fields
from trimtab.fabric.wire.trajectory import Scored
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.policy.sampler import PolicySampler
from trimtab.rollout.policy.version_gate import VersionGate
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.team import Role, Tokenizer


@pytest.fixture
def sampling_roles(engine: EngineClient, models: Path) -> Mapping[str, Role]:
    """A pool that samples 20 tokens at temperature 1."""
    tokenizer = AutoTokenizer.from_pretrained(models / "0")
    text = Tokenizer(
        encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
        decode=lambda ids: str(tokenizer.decode(ids)),
    )
    sampler = PolicySampler(engine, VersionGate())
    settings = SamplingSettings(max_new_tokens=20)
    return {"solver": Role(name="solver", policy="solver", tokenizer=text, sampler=sampler, sampling=settings)}


async def test_a_greedy_evaluation_gives_the_most_likely_answer_with_finite_logprobs(
    job: Job, sampling_roles: Mapping[str, Role], models: Path
) -> None:
    greedy = sampling_fields(Sampling(temperature=0.0, max_tokens=12, top_k=1))
    await job.issue(1, task_id="e", sampling=greedy, purpose=Purpose.EVALUATION, benchmark="held-out")
    await job.issue(1)
    worker = job.worker(SingleTurn(), sampling_roles)
    async with working(worker):
        await eventually(lambda: worker.completed == 2 * GROUP_SIZE, timeout_s=60.0)
    trajectories = await job.trajectories()
    evaluated = [trajectory for trajectory in trajectories if trajectory.task_id == "e"]
    trained = [trajectory for trajectory in trajectories if trajectory.task_id != "e"]
    assert {(t.purpose, t.benchmark) for t in evaluated} == {(Purpose.EVALUATION, "held-out")}
    assert {(t.purpose, t.benchmark) for t in trained} == {(Purpose.TRAIN, None)}
    assert len({tuple(t.token_ids.tolist()) for t in evaluated}) == 1
    assert len({tuple(t.token_ids.tolist()) for t in trained}) > 1
    reference = AutoModelForCausalLM.from_pretrained(models / "0", dtype=torch.float32)
    for trajectory in evaluated:
        assert isinstance(trajectory.outcome, Scored)
        assert np.isfinite(trajectory.logprobs).all()
        assert 1 <= trajectory.trained_tokens <= 12
        with torch.inference_mode():
            expected = torch.log_softmax(reference(torch.tensor([trajectory.token_ids.tolist()])).logits[0], dim=-1)
        answers = range(trajectory.prompt_tokens, len(trajectory.token_ids))
        for place, logprob in zip(answers, trajectory.logprobs, strict=True):
            assert trajectory.token_ids[place] == expected[place - 1].argmax()
            assert logprob == pytest.approx(expected[place - 1].max().item(), abs=1e-3)
