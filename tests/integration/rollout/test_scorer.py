"""Scores of a policy by a real engine: of the weights that it should have, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.rollout.job import at
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import EngineTimeout
from trimtab.rollout.policy.sampler import PolicySampler
from trimtab.rollout.policy.scorer import PolicyScorer
from trimtab.rollout.policy.version_gate import VersionGate, label_of

ROWS = [[5, 3, 9, 4], [7, 2], [1, 2, 3, 4, 5, 6]]


def expected(folder: Path, row: list[int]) -> list[float]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logprobs = model(torch.tensor([row])).logits[0].log_softmax(dim=-1)
    return [float(logprobs[place, token]) for place, token in enumerate(row[1:])]


async def test_scores_have_the_version_of_the_weights_that_made_them(engine: EngineClient, models: Path) -> None:
    gate = VersionGate()
    scorer = PolicyScorer([PolicySampler(engine, gate)])
    for row in ROWS:
        scored = await scorer.logprobs(row, temperature=1.0, request_id="first", deadline_s=60.0)
        assert scored.numbers == pytest.approx(expected(models / "0", row), abs=1e-4)
        assert (scored.oldest_version, scored.newest_version) == (0, 0)
    await engine.update_weights_from_disk(models / "1", weight_version=label_of(at(4)), timeout_s=60.0)
    gate.settle(at(4))
    scored = await scorer.logprobs(ROWS[0], temperature=1.0, request_id="second", deadline_s=60.0)
    assert scored.numbers == pytest.approx(expected(models / "1", ROWS[0]), abs=1e-4)
    assert (scored.oldest_version, scored.newest_version) == (4, 4)
    await engine.update_weights_from_disk(models / "0", weight_version="0", timeout_s=60.0)


async def test_scores_of_other_weights_than_the_engine_should_have_are_thrown_away(engine: EngineClient) -> None:
    sampler = PolicySampler(engine, VersionGate(at(9)))
    with pytest.raises(EngineTimeout, match="not scored within"):
        await PolicyScorer([sampler]).logprobs(ROWS[0], temperature=1.0, request_id="r", deadline_s=1.0)
    assert sampler.lost.is_set()


async def test_an_engine_that_is_away_is_passed_over(engine: EngineClient) -> None:
    async with EngineClient("http://127.0.0.1:9", request_timeout_s=5.0) as nobody:
        samplers = [PolicySampler(nobody, VersionGate()), PolicySampler(engine, VersionGate())]
        scorer = PolicyScorer(samplers)
        answers = [
            await scorer.logprobs(row, temperature=1.0, request_id=f"r{number}", deadline_s=60.0)
            for number, row in enumerate(ROWS)
        ]
    assert [len(answer.numbers) for answer in answers] == [len(row) - 1 for row in ROWS]
    assert all(np.isfinite(answer.numbers).all() for answer in answers)
    assert samplers[0].away
