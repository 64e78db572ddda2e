"""An answer in parts, as SGLang gives them in either of its ways and the built-in engine in one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trimtab.rollout.engines.contract import (
    EngineError,
    EngineOverloaded,
    EngineRefused,
    EngineUnavailable,
    Generated,
    SamplingSettings,
    WeightRun,
)
from trimtab.rollout.engines.streamed_answer import StreamedAnswer

TOKENS = [7, 8, 9, 5]
LOGPROBS = [-0.1, -0.2, -0.3, -0.4]
SPANS = [("0", 0, 3), ("1.1", 3, 4)]


def event(
    first: int, last: int, *, repeats: bool, finish: dict[str, Any] | None = None, ahead: int = 0
) -> dict[str, Any]:
    """Tokens up to `last`, of which those from `first` on are new. The list may be `ahead` of what else is said."""
    pairs = [[LOGPROBS[at], TOKENS[at], None] for at in range(len(TOKENS))]
    spans = [{"version": name, "start": start, "end": min(end, last)} for name, start, end in SPANS if start < last]
    meta = {
        "finish_reason": finish,
        "completion_tokens": last,
        "output_token_logprobs": pairs[0 if repeats else first : last + ahead],
        "output_token_logprobs_length": last,
        "weight_version": spans[-1]["version"] if spans else "0",
        "weight_versions": spans,
    }
    return {"output_ids": TOKENS[first:last], "meta_info": meta}


@pytest.mark.parametrize("repeats", [True, False], ids=["repeating", "incremental"])
def test_the_parts_are_the_answer(repeats: bool) -> None:
    told: list[Generated] = []
    answer = StreamedAnswer(told.append, truncated=None)
    answer.take(event(0, 1, repeats=repeats, ahead=1 if repeats else 0))
    answer.take(event(1, 3, repeats=repeats))
    answer.take(event(3, 4, repeats=repeats, finish={"type": "stop", "matched": 5}))
    assert [(part.token_ids, part.logprobs) for part in told] == [((7,), (-0.1,)), ((8, 9), (-0.2, -0.3))]
    assert [part.weight_runs for part in told] == [
        (WeightRun(weight_version="0", length=1),),
        (WeightRun(weight_version="0", length=2),),
    ]
    assert answer.whole() == Generated(
        token_ids=(7, 8, 9, 5),
        logprobs=(-0.1, -0.2, -0.3, -0.4),
        finish="stop",
        weight_version="1.1",
        weight_runs=(WeightRun(weight_version="0", length=3), WeightRun(weight_version="1.1", length=1)),
    )


def test_an_engine_that_does_not_account_for_tokens_says_nothing_of_them() -> None:
    told: list[Generated] = []
    answer = StreamedAnswer(told.append, truncated=None)
    for each in (event(0, 2, repeats=True), event(2, 4, repeats=True, finish={"type": "length", "length": 4})):
        del each["meta_info"]["weight_versions"]
        answer.take(each)
    assert told[0].weight_runs is None
    assert answer.whole().weight_runs is None
    assert answer.whole().token_ids == (7, 8, 9, 5)


def test_an_engine_may_account_for_all_tokens_at_the_end_alone() -> None:
    """As SGLang does."""
    told: list[Generated] = []
    answer = StreamedAnswer(told.append, truncated=None)
    first = event(0, 2, repeats=True)
    del first["meta_info"]["weight_versions"]
    answer.take(first)
    answer.take(event(2, 4, repeats=True, finish={"type": "length", "length": 4}))
    assert told[0].weight_runs is None
    assert answer.whole().weight_runs == (
        WeightRun(weight_version="0", length=3),
        WeightRun(weight_version="1.1", length=1),
    )


def test_logprobs_are_of_what_was_drawn_from_in_every_part() -> None:
    likeliest = [[math.log(0.5), 3, None], [math.log(0.3), 4, None]]
    told: list[Generated] = []
    answer = StreamedAnswer(told.append, truncated=SamplingSettings(max_new_tokens=2, top_k=2))
    for last, finish in ((1, None), (2, {"type": "length", "length": 2})):
        meta = {
            "finish_reason": finish,
            "output_token_logprobs": [likeliest[1]] * last,
            "output_token_logprobs_length": last,
            "output_top_logprobs": [likeliest] * last,
            "weight_version": "0",
        }
        answer.take({"meta_info": meta})
    assert told[0].logprobs == pytest.approx([math.log(0.3 / 0.8)])
    assert answer.whole().logprobs == pytest.approx([math.log(0.3 / 0.8)] * 2)


def test_a_stream_without_an_end_broke_off() -> None:
    answer = StreamedAnswer(lambda part: None, truncated=None)
    answer.take(event(0, 2, repeats=False))
    with pytest.raises(EngineUnavailable, match="broke off after 2 tokens"):
        answer.whole()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"error": {"message": "too long", "code": 400}}, EngineRefused),
        ({"error": {"message": "full", "code": 429}}, EngineOverloaded),
        ({"error": {"message": "the model thread has ended"}}, EngineUnavailable),
        ({"meta_info": {"finish_reason": None}}, EngineError),
        ({"meta_info": 3}, EngineError),
        (event(3, 4, repeats=False), EngineError),
        (
            event(0, 0, repeats=False, finish={"type": "abort", "status_code": 503, "message": "full"}),
            EngineUnavailable,
        ),
    ],
)
def test_what_is_no_part_of_an_answer_is_a_typed_error(wrong: dict[str, Any], error: type[EngineError]) -> None:
    with pytest.raises(error):
        StreamedAnswer(lambda part: None, truncated=None).take(wrong)
