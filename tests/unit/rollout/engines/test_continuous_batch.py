"""The engine's own forward passes, cache and batching against transformers, for every family and under every limit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from trimtab.rollout.engines.builtin.architecture import UnsupportedModelError, read_architecture
from trimtab.rollout.engines.builtin.batch import BatchLimits, ContinuousBatch
from trimtab.rollout.engines.builtin.generation import Generation, SamplingParams
from trimtab.rollout.engines.builtin.model import EngineModel

SIZE: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def rotary(kind: str, **settings: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **settings}}


CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZE),
    "llama tied": LlamaConfig(**SIZE, tie_word_embeddings=True),
    "llama biased": LlamaConfig(**SIZE, attention_bias=True, mlp_bias=True),
    "llama3 rotary": LlamaConfig(
        **SIZE,
        **rotary("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "yarn rotary": LlamaConfig(**SIZE, **rotary("yarn", factor=4.0, original_max_position_embeddings=128)),
    "linear rotary": LlamaConfig(**SIZE, **rotary("linear", factor=4.0)),
    "qwen2": Qwen2Config(**SIZE),
    "qwen3": Qwen3Config(**SIZE, head_dim=32),
}
PROMPT_LENGTHS = (1, 5, 40, 40, 70, 130)
LIMITS = BatchLimits(prefill_tokens=64)


def saved(config: PreTrainedConfig, folder: Path) -> Any:
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # As they are initialised, norms and biases would not be missed.
            parameter.normal_(mean=1.0 if "norm" in name else 0.0, std=0.2)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, EngineModel]:
    folder = tmp_path_factory.mktemp("llama")
    return saved(CONFIGS["llama"], folder), EngineModel(folder, device="cpu")


def prompts() -> list[list[int]]:
    chance = random.Random(1)
    return [[chance.randrange(97) for _ in range(length)] for length in PROMPT_LENGTHS]


def request(tokens: Sequence[int], *, count: int = 40, seed: int = 0) -> Generation:
    params = SamplingParams(max_new_tokens=count)
    return Generation(request_id="r", input_ids=list(tokens), params=params, seed=seed)


def finish(batch: ContinuousBatch) -> None:
    for _ in range(10_000):
        if not batch.busy:
            return
        batch.step(weight_version="0")
    raise AssertionError("the batch does not come to an end")


def assert_logprobs_of(reference: Any, generation: Generation) -> None:
    tokens = torch.tensor([generation.tokens])
    with torch.inference_mode():
        logprobs = torch.log_softmax(reference(tokens).logits[0, :-1], dim=-1)
    expected = logprobs.gather(-1, tokens[0, 1:, None])[len(generation.input_ids) - 1 :, 0]
    assert generation.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_samples_with_transformers_logprobs(name: str, tmp_path: Path) -> None:
    reference = saved(CONFIGS[name], tmp_path)
    batch = ContinuousBatch(EngineModel(tmp_path, device="cpu"), LIMITS)
    requests = [request(prompt, seed=seed) for seed, prompt in enumerate(prompts())]
    for number, each in enumerate(requests):  # they join one another in the midst of decoding
        batch.queue(each)
        for _ in range(number):
            batch.step(weight_version="0")
    finish(batch)
    for each in requests:
        assert len(each.output_ids) == 40
        assert_logprobs_of(reference, each)


def test_a_group_of_one_prompt_is_prefilled_once_and_a_later_turn_starts_from_the_one_before(
    llama: tuple[Any, EngineModel],
) -> None:
    reference, model = llama
    batch = ContinuousBatch(model, LIMITS)
    prompt = prompts()[-1]
    group = [request(prompt, seed=seed) for seed in range(8)]
    for each in group:
        batch.queue(each)
    finish(batch)
    assert [each.cached_tokens for each in group] == [0] + [len(prompt) - 1] * 7
    assert len({tuple(each.output_ids) for each in group}) == 8
    turn = request([*group[3].tokens, 1, 2, 3], seed=9)
    batch.queue(turn)
    finish(batch)
    assert turn.cached_tokens == group[3].length - 1
    for each in (*group, turn):
        assert_logprobs_of(reference, each)


def test_prefixes_are_not_reused_across_a_flush_not_even_those_of_requests_that_ran_through_it(
    llama: tuple[Any, EngineModel],
) -> None:
    _, model = llama
    batch = ContinuousBatch(model, LIMITS)
    first, second, third = (request(prompts()[-1], seed=seed) for seed in range(3))
    batch.queue(first)
    for _ in range(5):
        batch.step(weight_version="0")
    batch.flush_prefixes()
    finish(batch)
    batch.queue(second)
    finish(batch)
    batch.queue(third)
    finish(batch)
    assert (second.cached_tokens, third.cached_tokens) == (0, 129)


def test_a_prompt_that_was_half_computed_when_weights_changed_is_computed_again(tmp_path: Path) -> None:
    """An answer that one version sampled from its first token on is what that version says: the trainer compares."""
    reference = saved(CONFIGS["llama"], tmp_path / "old")
    model = EngineModel(tmp_path / "old", device="cpu")
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.1)
    reference.save_pretrained(tmp_path / "new")
    batch = ContinuousBatch(model, LIMITS)
    group = [request(prompts()[-1], seed=seed) for seed in range(3)]
    for each in group:
        batch.queue(each)
    batch.step(weight_version="0")
    assert not any(each.output_ids for each in group), "the prompt takes three steps"
    model.install(model.stage(tmp_path / "new"))
    batch.flush_prefixes()
    finish(batch)
    for each in group:
        assert_logprobs_of(reference, each)
    later = request(prompts()[-1], seed=9)
    batch.queue(later)
    finish(batch)
    assert later.cached_tokens == 129, "what the new weights made of it may be reused"


@pytest.mark.parametrize(
    "limits",
    [
        replace(LIMITS, max_running=2),
        replace(LIMITS, max_total_tokens=300),
        pytest.param(replace(LIMITS, max_cached_tokens=0), marks=pytest.mark.slow),
        pytest.param(replace(LIMITS, max_cached_tokens=50), marks=pytest.mark.slow),
        pytest.param(replace(LIMITS, prefill_tokens=7), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_tight_limits_change_the_order_of_work_and_not_its_result(
    llama: tuple[Any, EngineModel], limits: BatchLimits
) -> None:
    reference, model = llama
    roomy, tight = ContinuousBatch(model, LIMITS), ContinuousBatch(model, limits)
    results = []
    for batch in (roomy, tight):
        requests = [request(prompt, seed=seed) for seed, prompt in enumerate([*prompts(), *prompts()])]
        for each in requests:
            batch.queue(each)
        finish(batch)
        assert batch.used_tokens == 0
        results.append(requests)
    assert [each.output_ids for each in results[0]] == [each.output_ids for each in results[1]]
    for each in results[1]:
        assert_logprobs_of(reference, each)
    if limits.max_total_tokens == 300:
        assert sum(each.retractions for each in results[1]) > 0


def test_retracted_requests_go_on_where_they_were(llama: tuple[Any, EngineModel]) -> None:
    reference, model = llama
    batch = ContinuousBatch(model, LIMITS)
    requests = [request(prompt, seed=seed) for seed, prompt in enumerate(prompts())]
    for each in requests:
        batch.queue(each)
    for _ in range(6):
        for _ in range(5):
            batch.step(weight_version="0")
        batch.retract()
        assert batch.running == 0
    finish(batch)
    for each in requests:
        assert each.retractions > 0
        assert_logprobs_of(reference, each)


def test_ended_requests_leave_and_the_others_are_not_disturbed(llama: tuple[Any, EngineModel]) -> None:
    reference, model = llama
    batch = ContinuousBatch(model, LIMITS)
    requests = [request(prompt, seed=seed) for seed, prompt in enumerate(prompts())]
    for each in requests:
        batch.queue(each)
    batch.step(weight_version="0")  # the longest prompt is still on its way in
    gone = batch.end(lambda each: each in (requests[0], requests[2], requests[5]))
    assert {each.finish for each in gone} == {"abort"}
    finish(batch)
    for number in (1, 3, 4):
        assert_logprobs_of(reference, requests[number])
    assert len(requests[5].output_ids) < 40


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (LlamaConfig(**SIZE, hidden_act="gelu"), "hidden_act"),
        (LlamaConfig(**SIZE, **rotary("dynamic", factor=2.0)), "rope_type 'dynamic'"),
        (Qwen2Config(**SIZE, use_sliding_window=True, sliding_window=16, max_window_layers=1), "sliding"),
        (PreTrainedConfig(), "model_type"),
    ],
    ids=["activation", "rotary", "sliding window", "family"],
)
def test_what_it_cannot_compute_is_refused_by_name(config: PreTrainedConfig, named: str, tmp_path: Path) -> None:
    if type(config) is PreTrainedConfig:
        (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    else:
        config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=named):
        read_architecture(tmp_path)
