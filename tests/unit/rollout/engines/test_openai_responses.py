"""Token ids are taken as the endpoint tells them, or found beyond doubt, or not at all."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.rollout.speakers import END_OF_TURN, chat_tokenizer
from trimtab.rollout.engines.contract import EngineError, EngineRefused
from trimtab.rollout.engines.openai_responses import EngineAnswerUnusable, read_completion
from trimtab.rollout.workflows.team import Tokenizer

PAIRS = Tokenizer(
    encode=lambda text: [ord(text[n]) * 1000 + ord(text[n + 1 : n + 2] or "\0") for n in range(0, len(text), 2)],
    decode=lambda ids: "".join(chr(token // 1000) + chr(token % 1000).rstrip("\0") for token in ids),
)
"""Two characters a token, which another server's tokenizer may cut elsewhere."""


def answer(
    tokens: list[str], *, text: str | None = None, finish: str | None = "stop", logprobs: object = None, **more: object
) -> dict[str, Any]:
    values = [-0.5] * len(tokens) if logprobs is None else logprobs
    choice = {
        "text": "".join(tokens) if text is None else text,
        "finish_reason": finish,
        "logprobs": {"tokens": tokens, "token_logprobs": values},
    }
    return {"choices": [choice | more]}


def test_ids_that_are_told_are_taken() -> None:
    read = read_completion(answer(["ab", "c"], token_ids=[7, 9]), PAIRS)
    assert (read.token_ids, read.logprobs, read.finish) == ((7, 9), (-0.5, -0.5), "stop")
    assert read.weight_version == "0"


def test_ids_in_place_of_text_are_taken() -> None:
    assert read_completion(answer(["token_id:7", "token_id:9"], text="abc"), PAIRS).token_ids == (7, 9)


def test_text_is_tokenized_where_that_leaves_no_doubt() -> None:
    assert read_completion(answer(["ab", "c"]), PAIRS).token_ids == tuple(PAIRS.encode("abc"))


def test_the_token_that_ended_it_is_told_only_with_the_logprobs() -> None:
    tokenizer = Tokenizer.of(chat_tokenizer())
    read = read_completion(answer(["a", " ", "b", END_OF_TURN], text="a b"), tokenizer)
    assert list(read.token_ids) == tokenizer.encode(f"a b{END_OF_TURN}")
    assert len(read.token_ids) == 4


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["a", "b", "c"], "its 3 tokens are 2 by the policy's tokenizer"),
        (["a", "bc"], "its token 'a' is another by the policy's tokenizer"),
    ],
    ids=["another number", "the same number, cut elsewhere"],
)
def test_tokens_in_doubt_are_refused(tokens: list[str], message: str) -> None:
    with pytest.raises(EngineAnswerUnusable, match=message) as caught:
        read_completion(answer(tokens), PAIRS)
    assert caught.value.kind == "engine-answer-unusable"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (answer(["ab"], token_ids=[7], logprobs=[]), "0 logprobs for 1 tokens"),
        (answer(["ab"], token_ids=[7, 8]), "1 logprobs for 2 tokens"),
        (answer(["ab"], token_ids=[7], logprobs=[math.nan]), "not finite"),
        (answer(["ab"], token_ids=[7], logprobs=[None]), "a shape we do not know"),
        (answer(["ab"], token_ids=["x"]), "token_ids are not numbers"),
        (answer(["ab"], logprobs="much"), "a shape we do not know"),
        ({"choices": []}, "a shape we do not know"),
        ({"choices": [{"text": "ab", "finish_reason": "stop", "logprobs": None, "token_ids": [7]}]}, "0 logprobs for"),
    ],
)
def test_without_exact_logprobs_there_is_no_answer(given: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineAnswerUnusable, match=message):
        read_completion(given, PAIRS)


@pytest.mark.parametrize("finish", ["stop", "length", "abort"])
def test_ends_are_passed_on(finish: str) -> None:
    assert read_completion(answer(["ab"], finish=finish), PAIRS).finish == finish


def test_other_ends_are_errors() -> None:
    with pytest.raises(EngineRefused, match="content filter"):
        read_completion(answer(["ab"], finish="content_filter"), PAIRS)
    with pytest.raises(EngineError, match="a reason we do not know: None"):
        read_completion(answer(["ab"], finish=None), PAIRS)
