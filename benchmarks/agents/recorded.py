"""Rows and tokens of the same recorded sessions: as the gateway trains them, a row for every call, and as others do it,
who render every history anew and join calls whose tokens happen to begin alike.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.gateway.agents import Agent, sayings
from tests.support.gateway.talkers import Talker, session_of
from tests.support.gateway.tokenizers import end_of_turn, tokenizer_of
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.gateway.exchange import Answer, Ask
from trimtab.rollout.gateway.parsing.families import family_of
from trimtab.rollout.gateway.rendering import template_messages
from trimtab.rollout.workflows.forest import forest_of
from trimtab.rollout.workflows.team import Role

_MISSPELT = 0.01
"""The share of tokens that a model writes otherwise than its tokenizer would."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What all sessions together would bring to the trainer."""

    rows: int
    tokens: int
    """That it computes."""
    sampled: int
    """That it learns from."""

    def __add__(self, other: Trained) -> Trained:
        return Trained(
            rows=self.rows + other.rows, tokens=self.tokens + other.tokens, sampled=self.sampled + other.sampled
        )


NOTHING = Trained(rows=0, tokens=0, sampled=0)


async def compared(family: str, *, sessions: int, steps: int, faithful: bool) -> dict[str, Trained]:
    sums = {"gateway": NOTHING, "row_per_call": NOTHING, "re_templated": NOTHING}
    for seed in range(sessions):
        for way, trained in (await _session(family, seed=seed, steps=steps, faithful=faithful)).items():
            sums[way] += trained
    return sums


async def _session(family: str, *, seed: int, steps: int, faithful: bool) -> dict[str, Trained]:
    tokenizer = tokenizer_of(family)
    talker = Talker(
        tokenizer, sayings(family, random.Random(seed)), end=end_of_turn(family), seed=seed, misspelt=_MISSPELT
    )
    role = Role("solver", "solver", tokenizer, talker, SamplingSettings(max_new_tokens=400))
    session = session_of(role)
    agent = Agent(session, "solver", seed=seed, faithful=faithful, tools=True)
    await agent.run(steps)
    rows = forest_of("solver", session.scored(1.0)).rows
    ours = Trained(
        rows=len(rows),
        tokens=sum(len(row.token_ids) for row in rows),
        sampled=sum(len(row.logprobs) for row in rows),
    )
    calls = [(len(request.prompt), len(request.completion.token_ids)) for request in talker.requests]
    each = Trained(rows=len(calls), tokens=sum(map(sum, calls)), sampled=sum(said for _, said in calls))
    return {"gateway": ours, "row_per_call": each, "re_templated": _re_templated(role, agent.answered, talker)}


def _re_templated(role: Role, answered: Sequence[tuple[Ask, Answer]], talker: Talker) -> Trained:
    """A call goes on with the row whose tokens its prompt begins with; otherwise it begins one."""
    tokenizer = role.tokenizer
    render = tokenizer.render
    assert render is not None
    family = family_of(lambda messages: render(messages, {}))
    rows: list[list[int]] = []
    sampled = 0
    for ask, answer in answered:
        assert answer.version is not None
        assert not isinstance(ask.messages, str)
        tools = [{"type": "function", "function": vars(tool)} for tool in ask.tools]
        prompt = tokenizer.encode(render(template_messages(ask.messages, family), {"tools": tools}))
        said = talker.requests[answer.version].completion.token_ids
        sampled += len(said)
        known = max((row for row in rows if row == prompt[: len(row)]), key=len, default=None)
        if known is not None:
            rows.remove(known)
        rows.append([*prompt, *said])
    return Trained(rows=len(rows), tokens=sum(map(len, rows)), sampled=sampled)
