"""Finds every token that an engine was asked for again in the rows that a policy learns from."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.support.gateway.talkers import Talker
from trimtab.fabric.wire.spans import Producer
from trimtab.rollout.gateway.exchange import Answer, Ask
from trimtab.rollout.gateway.parsing.families import Family
from trimtab.rollout.gateway.rendering import template_messages
from trimtab.rollout.gateway.session import EpisodeSession
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.workflows.forest import forest_of


def check_trained(session: EpisodeSession, talker: Talker, *, role: str = "solver") -> None:
    """Each is there once, behind the very tokens that it was sampled behind, and nothing else is trained. A token is
    known by its logprob, which no other has.
    """
    rows = forest_of(role, session.scored(1.0)).rows
    found: dict[float, tuple[int, ...]] = {}
    for row in rows:
        logprobs, at = iter(row.logprobs), 0
        for span in row.spans:
            if span.producer is Producer.MODEL:
                for place in range(at, at + span.length):
                    logprob = next(logprobs)
                    assert logprob not in found, "trained twice"
                    found[logprob] = tuple(row.token_ids[: place + 1])
                    assert span.version == _request_of(logprob), "the version that sampled it"
            at += span.length
    expected = {
        logprob: request.prompt + request.completion.token_ids[: place + 1]
        for request in talker.requests
        for place, logprob in enumerate(request.completion.logprobs)
    }
    assert found == expected


def check_prompts(answered: Sequence[tuple[Ask, Answer]], talker: Talker, tokenizer: Tokenizer, family: Family) -> None:
    """The engine was asked what the agent asked, but for thoughts and white space. Only where templates show none."""
    assert tokenizer.render is not None
    assert tokenizer.decode_marks is not None
    for ask, answer in answered:
        assert answer.version is not None
        assert not isinstance(ask.messages, str)
        tools = [{"type": "function", "function": vars(tool)} for tool in ask.tools]
        shown = tokenizer.render(template_messages(ask.messages, family), {"tools": tools} if tools else {})
        prompt = tokenizer.decode_marks(list(talker.requests[answer.version].prompt))
        assert _bare(prompt) == _bare(shown)


def _bare(text: str) -> str:
    return re.sub(r"\s", "", re.sub(r"<think>.*?(</think>|(?=<\|im_end|<\|eot))", "", text, flags=re.DOTALL))


def _request_of(logprob: float) -> int:
    return int(round(-logprob * 1e6) - 1) // 1000
