"""Scores of given tokens against transformers, in steps of any size, beside each other, and across new weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from trimtab.rollout.engines.builtin.batch import BatchLimits
from trimtab.rollout.engines.builtin.model import EngineModel
from trimtab.rollout.engines.builtin.scheduler import Scheduler
from trimtab.rollout.engines.builtin.scoring import Scoring, ScoringBatch
from trimtab.rollout.engines.builtin.sparse_update import WeightMismatchError

SIZE: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZE),
    "qwen2": Qwen2Config(**SIZE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZE, head_dim=32),
}
ROWS = [[3], [5, 7], list(range(1, 41)), [(n * 7) % 97 for n in range(150)]]


def saved(config: PreTrainedConfig, folder: Path, *, seed: int = 0, value_head: bool = False) -> Any:
    torch.manual_seed(seed)
    if value_head:
        config.num_labels, config.pad_token_id = 1, 0
    made = AutoModelForSequenceClassification if value_head else AutoModelForCausalLM
    model: Any = made.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(mean=1.0 if "norm" in name else 0.0, std=0.2)
    model.save_pretrained(folder)
    return model


def expected(model: Any, row: Sequence[int], *, temperature: float = 1.0) -> list[float]:
    with torch.no_grad():
        logprobs = (model(torch.tensor([row])).logits[0] / temperature).log_softmax(dim=-1)
    return [float(logprobs[place, token]) for place, token in enumerate(row[1:])]


def scored(model: EngineModel, rows: Sequence[list[int]], *, step_tokens: int, temperature: float = 1.0) -> Any:
    batch = ScoringBatch(model, max_tokens=64, step_tokens=step_tokens)
    asked = [Scoring(request_id=str(n), input_ids=row, temperature=temperature) for n, row in enumerate(rows)]
    for scoring in asked:
        batch.queue(scoring)
    while batch.busy:
        batch.step()
    return [scoring.numbers for scoring in asked]


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("step_tokens", [7, 512])
def test_logprobs_are_those_of_one_forward_pass(family: str, step_tokens: int, tmp_path: Path) -> None:
    reference = saved(CONFIGS[family], tmp_path)
    answers = scored(EngineModel(tmp_path, device="cpu"), ROWS, step_tokens=step_tokens)
    assert [len(numbers) for numbers in answers] == [0, 1, 39, 149]
    for row, numbers in zip(ROWS, answers, strict=True):
        assert numbers == pytest.approx(expected(reference, row), abs=1e-4)


def test_weights_can_be_rounded_to_what_a_trainer_publishes(tmp_path: Path) -> None:
    reference = saved(CONFIGS["llama"], tmp_path)
    (as_stored,) = scored(EngineModel(tmp_path, device="cpu"), [ROWS[2]], step_tokens=16)
    rounding = EngineModel(tmp_path, device="cpu", rounded_to=torch.bfloat16)
    (rounded,) = scored(rounding, [ROWS[2]], step_tokens=16)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.bfloat16())
    assert rounded == pytest.approx(expected(reference, ROWS[2]), abs=1e-5)
    assert rounded != pytest.approx(as_stored, abs=1e-4)


def test_logprobs_are_at_the_temperature_that_is_asked_for(tmp_path: Path) -> None:
    reference = saved(CONFIGS["llama"], tmp_path)
    (numbers,) = scored(EngineModel(tmp_path, device="cpu"), [ROWS[2]], step_tokens=16, temperature=0.7)
    assert numbers == pytest.approx(expected(reference, ROWS[2], temperature=0.7), abs=1e-4)
    assert numbers != pytest.approx(expected(reference, ROWS[2]), abs=1e-2)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_value_head_says_a_number_of_every_token(family: str, tmp_path: Path) -> None:
    reference = saved(CONFIGS[family], tmp_path, value_head=True)
    answers = scored(EngineModel(tmp_path, device="cpu", value_head=True), ROWS, step_tokens=16)
    for row, numbers in zip(ROWS, answers, strict=True):
        with torch.no_grad():
            values = reference.score(reference.model(torch.tensor([row])).last_hidden_state)[0, :, 0]
        assert numbers == pytest.approx(values.tolist(), abs=1e-4)


def test_a_critic_that_begins_with_a_language_model_expects_nothing(tmp_path: Path) -> None:
    saved(CONFIGS["llama"], tmp_path)
    (numbers,) = scored(EngineModel(tmp_path, device="cpu", value_head=True), [ROWS[1]], step_tokens=16)
    assert numbers == [0.0, 0.0]


def test_a_value_head_is_not_served_as_a_language_model(tmp_path: Path) -> None:
    saved(CONFIGS["llama"], tmp_path, value_head=True)
    with pytest.raises(WeightMismatchError, match=r"score\.weight"):
        EngineModel(tmp_path, device="cpu")


def test_all_numbers_of_a_row_are_of_one_version(tmp_path: Path) -> None:
    """New weights come when a part of the row is scored."""
    saved(CONFIGS["llama"], tmp_path / "old")
    new = saved(CONFIGS["llama"], tmp_path / "new", seed=1)
    model = EngineModel(tmp_path / "old", device="cpu")
    limits = BatchLimits(prefill_tokens=4)
    scheduler = Scheduler(model, weight_version="1.1", limits=limits, max_held=8)
    scoring = Scoring(request_id="long", input_ids=ROWS[3])
    scheduler.submit(scoring)
    for _ in range(3):
        scheduler._read_inbox(wait=False)
        assert scheduler._scorings.step() == []
    scheduler.install(model.stage(tmp_path / "new"), weight_version="1.2")
    scheduler.start()
    scoring.done.result(timeout=60)
    scheduler.stop(timeout_s=30)
    assert (scoring.weight_version, scoring.finish) == ("1.2", "length")
    assert scoring.numbers == pytest.approx(expected(new, ROWS[3]), abs=1e-4)


def test_what_is_aborted_has_no_numbers(tmp_path: Path) -> None:
    saved(CONFIGS["llama"], tmp_path)
    scheduler = Scheduler(
        EngineModel(tmp_path, device="cpu"), weight_version="0", limits=BatchLimits(prefill_tokens=4), max_held=8
    )
    scoring = Scoring(request_id="long", input_ids=ROWS[3])
    scheduler.submit(scoring)
    scheduler.abort("long")
    scheduler.start()
    scoring.done.result(timeout=60)
    scheduler.stop(timeout_s=30)
    assert (scoring.finish, scoring.numbers) == ("abort", [])
