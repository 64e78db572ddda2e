"""Whatever agents do with their histories, every sampled token is trained exactly once, behind the very tokens that it
was sampled behind, with its own logprob and version; and nothing else is trained.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gateway.agents import Agent, sayings
from tests.support.gateway.talkers import session_of, talking_role
from tests.support.gateway.trained import check_prompts, check_trained
from trimtab.rollout.gateway.parsing.families import HERMES
from trimtab.rollout.gateway.tally import Counted

FAMILIES = ("qwen2.5", "qwen3", "llama3", "mistral", "deepseek", "smollm2", "gemma", "phi", "glm", "gpt-oss")
WITHOUT_TOOLS = ("smollm2", "gemma", "phi")
APPENDING = ("qwen2.5", "smollm2", "llama3")
"""Templates that never show an earlier turn otherwise than before; those of the others do."""


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(FAMILIES), st.integers(0, 2**32), st.integers(1, 10), st.booleans())
async def test_every_sampled_token_is_trained_once_as_it_was_sampled(
    family: str, seed: int, steps: int, keep_thoughts: bool
) -> None:
    solver, talker = talking_role(family, sayings(family, random.Random(seed)), seed=seed)
    session = session_of(solver, keep_thoughts=keep_thoughts)
    agent = Agent(session, "solver", seed=seed, faithful=False, tools=family not in WITHOUT_TOOLS)
    await agent.run(steps)
    check_trained(session, talker)
    if family in APPENDING:
        check_prompts(agent.answered, talker, solver.tokenizer, HERMES)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(APPENDING), st.integers(0, 2**32), st.integers(1, 10))
async def test_an_agent_that_only_sends_back_has_one_row(family: str, seed: int, steps: int) -> None:
    solver, talker = talking_role(family, sayings(family, random.Random(seed)), seed=seed)
    session = session_of(solver, keep_thoughts=True)
    agent = Agent(session, "solver", seed=seed, faithful=True, tools=family not in WITHOUT_TOOLS)
    await agent.run(steps)
    check_trained(session, talker)
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
    await Agent(session, "solver", seed=seed, faithful=False, tools=family not in WITHOUT_TOOLS).run(steps)
    check_trained(session, talker)
