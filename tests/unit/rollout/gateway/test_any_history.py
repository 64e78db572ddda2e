"""Whatever agents do with their histories, every sampled token is trained exactly once, behind the very tokens that it
was sampled behind, with its own logprob and version; and nothing else is trained.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gateway.agents import Agent, sayings
from tests.support.gateway.talkers import Talker, session_of, talking_role
from trimtab.fabric.wire.spans import Producer
from trimtab.rollout.gateway.session import EpisodeSession
from trimtab.rollout.gateway.tally import Counted
from trimtab.rollout.workflows.forest import forest_of

FAMILIES = ("qwen2.5", "qwen3", "llama3", "mistral", "deepseek", "smollm2")
APPENDING = ("qwen2.5", "smollm2", "llama3")
"""Templates that never show an earlier turn otherwise than before; those of the others do."""


def check(session: EpisodeSession, talker: Talker) -> None:
    """Every token of every request is found again, by its logprob, which no other token has."""
    rows = forest_of("solver", session.scored(1.0)).rows
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


def _request_of(logprob: float) -> int:
    return int(round(-logprob * 1e6) - 1) // 1000


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(FAMILIES), st.integers(0, 2**32), st.integers(1, 10), st.booleans())
async def test_every_sampled_token_is_trained_once_as_it_was_sampled(
    family: str, seed: int, steps: int, keep_thoughts: bool
) -> None:
    solver, talker = talking_role(family, sayings(family, random.Random(seed)), seed=seed)
    session = session_of(solver, keep_thoughts=keep_thoughts)
    agent = Agent(session, "solver", seed=seed, faithful=False, tools=family != "smollm2")
    await agent.run(steps)
    check(session, talker)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(APPENDING), st.integers(0, 2**32), st.integers(1, 10))
async def test_an_agent_that_only_sends_back_has_one_row(family: str, seed: int, steps: int) -> None:
    solver, talker = talking_role(family, sayings(family, random.Random(seed)), seed=seed)
    session = session_of(solver, keep_thoughts=True)
    agent = Agent(session, "solver", seed=seed, faithful=True, tools=family != "smollm2")
    await agent.run(steps)
    check(session, talker)
    assert session.counts[Counted.LINEAGES] == 1
    assert session.counts[Counted.UNMATCHED] == session.counts[Counted.PARTED] == 0
    assert session.counts[Counted.ECHOED] == steps * (steps - 1) // 2
    assert not agent.refused


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(FAMILIES), st.integers(0, 2**32), st.integers(1, 25), st.booleans())
async def test_every_sampled_token_is_trained_once_in_many_histories(
    family: str, seed: int, steps: int, keep_thoughts: bool
) -> None:
    solver, talker = talking_role(family, sayings(family, random.Random(seed)), seed=seed)
    session = session_of(solver, keep_thoughts=keep_thoughts)
    await Agent(session, "solver", seed=seed, faithful=False, tools=family != "smollm2").run(steps)
    check(session, talker)
