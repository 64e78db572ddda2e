"""Stages that a policy's engine computes: which of an engine's numbers belongs to which token of a row."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from examples.quickstart.make import make_tokenizer
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.staged_job import row
from trimtab.fabric.wire.stage import StageRow, StageTask
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import EngineRefused
from trimtab.rollout.policy.sampler import PolicySampler
from trimtab.rollout.policy.scorer import PolicyScorer
from trimtab.rollout.policy.version_gate import VersionGate
from trimtab.rollout.stages.group import GroupRow, StageGroup
from trimtab.rollout.stages.logprobs import Logprobs
from trimtab.rollout.stages.reward import ModelReward
from trimtab.rollout.stages.turn_rewards import ModelTurnRewards
from trimtab.rollout.stages.values import Values

# Letters as the model's own tokens.
TOKENS = {letter: number for number, letter in enumerate("2+45.")}


def group() -> StageGroup:
    rows = []
    for index, answer in enumerate(("45.", "4")):
        made = row("g", index, answer=answer)
        for place, letter in enumerate("2+" + answer):
            made.token_ids[place] = TOKENS[letter]
        rows.append(GroupRow(trajectory=made, reward=0.0, columns={}))
    task = StageTask(
        job="j",
        stage="s",
        policy="solver",
        group_id="g",
        prompt_id="p",
        rows=tuple(StageRow(sequence=n, trajectory_id=one.trajectory_id, reward=0.0) for n, one in enumerate(rows, 1)),
        created_at=1.0,
    )
    return StageGroup(task=task, rows=tuple(rows))


def tokens(of: GroupRow) -> torch.Tensor:
    return torch.tensor([of.trajectory.token_ids.tolist()])


@pytest.fixture(scope="module")
def valued(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a value head, of the same shape as the others."""
    folder = tmp_path_factory.mktemp("valued") / "model"
    torch.manual_seed(1)
    model: Any = AutoModelForSequenceClassification.from_pretrained(models / "0", num_labels=1, dtype=torch.float32)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    make_tokenizer(folder)
    return folder


@pytest.fixture
async def critic(valued: Path, tmp_path: Path) -> AsyncIterator[EngineClient]:
    process = EngineProcess(valued, tmp_path, arguments=("--value-head",))
    process.start()
    try:
        await process.serves()
        async with EngineClient(process.url, request_timeout_s=300.0) as client:
            yield client
    finally:
        process.kill()


def scorer(client: EngineClient) -> PolicyScorer:
    return PolicyScorer([PolicySampler(client, VersionGate())])


async def test_logprobs_are_of_the_trained_tokens(engine: EngineClient) -> None:
    asked = group()
    computed = await Logprobs(scorer(engine), temperature=1.0, learns=True).compute(asked, deadline_s=60.0)
    for one, numbers in zip(asked.rows, computed.numbers, strict=True):
        whole = await scorer(engine).logprobs(
            one.trajectory.token_ids.tolist(), temperature=1.0, request_id="r", deadline_s=60.0
        )
        # The prompt has two tokens, the first of which has no logprob.
        assert numbers.tolist() == pytest.approx(whole.numbers[1:], abs=1e-6)
        assert len(numbers) == one.trajectory.trained_tokens
    assert computed.versions == (0, 0)


async def test_values_rewards_and_turn_rewards_are_where_they_belong(critic: EngineClient, valued: Path) -> None:
    model: Any = AutoModelForSequenceClassification.from_pretrained(valued, dtype=torch.float32)
    asked = group()
    with torch.no_grad():
        said = [model.score(model.model(tokens(one)).last_hidden_state)[0, :, 0].tolist() for one in asked.rows]
    computed = await Values(scorer(critic), learns=True).compute(asked, deadline_s=60.0)
    for numbers, values in zip(computed.numbers, said, strict=True):
        assert numbers.tolist() == pytest.approx(values[1:-1], abs=1e-4), "before each trained token"
    rewards = await ModelReward(scorer(critic), learns=False).compute(asked, deadline_s=60.0)
    assert rewards.rewards == pytest.approx([values[-1] for values in said], abs=1e-4), "at the end of the row"
    assert rewards.versions is None
    by_turns = await ModelTurnRewards(scorer(critic), learns=False).compute(asked, deadline_s=60.0)
    assert by_turns.turn_rewards is not None
    for turns, values in zip(by_turns.turn_rewards, said, strict=True):
        assert list(turns) == pytest.approx(values[2:], abs=1e-4), "at the end of each turn"


async def test_a_value_head_samples_nothing_and_a_language_model_has_no_values(
    critic: EngineClient, engine: EngineClient
) -> None:
    with pytest.raises(EngineRefused, match="ask /values"):
        await critic.score([1, 2], temperature=1.0, request_id="r", weight_version="0")
    with pytest.raises(EngineRefused, match="--value-head"):
        await engine.values([1, 2], request_id="r", weight_version="0")
