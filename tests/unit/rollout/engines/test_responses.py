"""What an engine answers is read as the contract says, and anything else is an error that names it."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.rollout.engines import responses
from trimtab.rollout.engines.contract import (
    EngineError,
    EngineLoad,
    EngineOverloaded,
    EngineRefused,
    EngineUnavailable,
    SamplingSettings,
    ServerInfo,
    WeightRun,
)


def answer(**changes: Any) -> dict[str, Any]:
    meta = {
        "finish_reason": {"type": "stop", "matched": "</a>"},
        "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None], [-1.0, 9, "x"]],
        "weight_version": "1.4",
        "weight_versions": [{"version": "1.3", "start": 0, "end": 1}, {"version": "1.4", "start": 1, "end": 3}],
    }
    return {"text": "trimmed", "output_ids": [7], "meta_info": meta | changes}


def test_tokens_are_those_with_logprobs_even_where_the_text_is_trimmed() -> None:
    part = responses.generated(answer())
    assert (part.token_ids, part.logprobs) == ((7, 8, 9), (-0.5, -0.25, -1.0))
    assert (part.finish, part.weight_version) == ("stop", "1.4")
    assert part.weight_runs == (
        WeightRun(weight_version="1.3", length=1),
        WeightRun(weight_version="1.4", length=2),
    )


def test_an_engine_may_not_account_for_tokens() -> None:
    without = answer()
    del without["meta_info"]["weight_versions"]
    assert responses.generated(without).weight_runs is None
    assert responses.generated(answer(weight_versions=None)).weight_runs is None


@pytest.mark.parametrize("spans", [None, [], [{"version": "1.4", "start": 0, "end": 0}]])
def test_scores_of_given_tokens_may_come_with_no_account_of_them(spans: Any) -> None:
    """There are sampled ones alone in SGLang's, which are none here."""
    pairs = [[None, 5, None], [-0.5, 6, None], [-0.25, 7, None]]
    finish = {"type": "length", "length": 0}
    told = answer(input_token_logprobs=pairs, finish_reason=finish, weight_versions=spans, output_token_logprobs=[])
    part = responses.scored(told, [5, 6, 7])
    assert (part.token_ids, part.numbers, part.weight_runs) == ((6, 7), (-0.5, -0.25), None)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"output_token_logprobs": None}, "TypeError"),
        ({"output_token_logprobs": [[-0.5]]}, "IndexError"),
        ({"output_token_logprobs": [[None, 3, None]], "weight_versions": None}, "TypeError"),
        ({"output_token_logprobs": [[float("nan"), 3, None]], "weight_versions": None}, "not finite"),
        ({"finish_reason": None}, "TypeError"),
        ({"finish_reason": {"type": "tired"}}, "tired"),
        ({"weight_versions": [{"version": "1.3", "start": 0, "end": 2}]}, "covers 2 of 3"),
        ({"weight_versions": []}, "covers 0 of 3"),
        ({"weight_versions": [{"version": "1.3", "start": 1, "end": 3}]}, "gap or an overlap after token 0"),
        (
            {"weight_versions": [{"version": "a", "start": 0, "end": 2}, {"version": "b", "start": 1, "end": 3}]},
            "gap or an overlap after token 2",
        ),
        ({"weight_versions": ["1.3"]}, "TypeError"),
    ],
    ids=str,
)
def test_what_is_not_in_the_contract_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(EngineError, match=named):
        responses.generated(answer(**changes))


@pytest.mark.parametrize(("status", "kind"), [(400, EngineRefused), (429, EngineOverloaded), (503, EngineUnavailable)])
def test_a_refusal_inside_an_answer_is_a_refusal(status: int, kind: type[EngineError]) -> None:
    reason = {"type": "abort", "status_code": status, "message": "why"}
    with pytest.raises(kind, match="why"):
        responses.generated(answer(finish_reason=reason))


def test_loads_are_summed_over_ranks_and_the_fullest_cache_counts() -> None:
    ranks = [
        {"num_running_reqs": 3, "num_waiting_reqs": 0, "token_usage": 0.2},
        {"num_running_reqs": 4, "num_waiting_reqs": 2, "token_usage": 0.9},
    ]
    assert responses.load({"loads": ranks}) == EngineLoad(running=7, waiting=2, token_usage=0.9)
    with pytest.raises(EngineError, match="/v1/loads"):
        responses.load({"loads": [{}]})


def test_an_engine_may_not_say_what_it_was_set_up_for() -> None:
    unknown = ServerInfo(weight_loaders=(), tensor_parallel=None)
    assert responses.server_info({"custom_weight_loader": None}) == unknown
    with pytest.raises(EngineError, match="/model_info"):
        responses.model_info({"model_path": "m"})


def test_an_update_says_for_how_long_it_paused_or_nothing() -> None:
    assert responses.weight_update("/u", {"success": True, "pause_seconds": 0.25}).pause_s == 0.25
    assert responses.weight_update("/u", {"success": True}).pause_s is None
    for failed in ({"success": False, "message": "no room"}, {"message": "no room"}):
        with pytest.raises(EngineRefused, match="/u: no room"):
            responses.weight_update("/u", failed)


def test_sampling_settings_have_the_names_of_the_contract() -> None:
    settings = SamplingSettings(
        max_new_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        seed=1,
        stop=("a",),
        stop_token_ids=(2,),
        ignore_eos=True,
    )
    assert settings.sampling_params() == {
        "max_new_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "sampling_seed": 1,
        "stop": ["a"], "stop_token_ids": [2], "ignore_eos": True,
    }  # fmt: skip
    plain = SamplingSettings(max_new_tokens=5).sampling_params()
    assert plain == {"max_new_tokens": 5, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}


def scored(told: list[int], *, given: list[int]) -> tuple[float, ...]:
    pairs = [[None if at == 0 else -float(at), name, None] for at, name in enumerate(told)]
    meta = {"input_token_logprobs": pairs, "finish_reason": {"type": "length"}, "weight_versions": None}
    return responses.scored(answer(**meta), given).numbers


def test_the_last_token_of_the_vocabulary_may_be_named_zero() -> None:
    """As SGLang names it: with an id of its own it would be taken for what stands for an image."""
    assert scored([1, 0, 3, 0, 0], given=[1, 9, 3, 9, 0]) == (-1.0, -2.0, -3.0, -4.0)
    assert scored([1, 9, 3], given=[1, 9, 3]) == (-1.0, -2.0)


@pytest.mark.parametrize(
    "told", [[1, 0, 0, 9], [1, 9, 3], [1, 3, 9, 9], [1, 9, 3, 8]], ids=["another is zero", "few", "order", "another"]
)
def test_logprobs_of_other_tokens_than_those_given_are_no_answer(told: list[int]) -> None:
    with pytest.raises(EngineError, match="not of the tokens"):
        scored(told, given=[1, 9, 3, 9])
