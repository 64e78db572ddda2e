"""What `trimtab gateway` says of each request, also of those that are answered side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.support.gateway.talkers import talking_role
from tests.support.rollout.speakers import assignment
from trimtab.cli.gateway.telling import ToldSession, summary
from trimtab.fabric.metrics import Metrics
from trimtab.rollout.gateway.budget import Budget, BudgetLimits
from trimtab.rollout.gateway.exchange import Answer, Ask, Said, UnknownRole
from trimtab.rollout.gateway.session import EpisodeSession
from trimtab.rollout.workflows.team import Role, Team


def told_session(*roles: Role) -> tuple[ToldSession, list[str]]:
    team = Team({role.name: role for role in roles}, assignment())
    lines: list[str] = []
    budget = Budget(BudgetLimits(), clock=lambda: 0.0)
    told = ToldSession(
        Metrics(), lambda metrics: EpisodeSession(team, budget=budget, metrics=metrics), tell=lines.append
    )
    return told, lines


def hello(*more: Said, wishes: Sequence[str] = ()) -> Ask:
    messages = (Said(speaker="user", text="hello"), *more)
    return Ask(role="solver", messages=messages, wishes=dict.fromkeys(wishes, 0.5))


async def test_each_line_is_of_its_own_request() -> None:
    role, _ = talking_role("qwen2.5", lambda number: f"good day {number}")
    told, lines = told_session(role)
    (first,) = await told.ask(hello(wishes=["temperature"]))
    again = (first.said, Said(speaker="user", text="and?"))
    own = (Said(speaker="assistant", text="nobody said so"), Said(speaker="user", text="and?"))

    async def streamed() -> list[Answer]:
        return [part async for part in told.stream(hello(*own)) if isinstance(part, Answer)]

    (second,), (third,) = await asyncio.gather(told.ask(hello(*again)), streamed())
    assert lines[0].endswith("sampled; 1 overridden")
    by_echo = {"echoed" in line: line for line in lines[1:]}
    assert f"{second.prompt_tokens} tokens heard, {second.cached_tokens} of them known" in by_echo[True]
    assert "unmatched" not in by_echo[True]
    assert f"{third.prompt_tokens} tokens heard, 0 of them known" in by_echo[False]
    assert "1 unmatched" in by_echo[False]


async def test_what_is_refused_is_told_too() -> None:
    role, _ = talking_role("qwen2.5", lambda number: "good day")
    told, lines = told_session(role)
    with pytest.raises(UnknownRole):
        await told.ask(Ask(role="judge", messages="hello"))
    assert lines[0].startswith("judge: refused: no role 'judge'")


async def test_in_the_end_rows_and_tokens_are_told() -> None:
    role, talker = talking_role("qwen2.5", lambda number: f"good day {number}")
    frozen, _ = talking_role("qwen2.5", lambda number: "hm", name="judge", frozen=True)
    told, _ = told_session(role, frozen)
    (first,) = await told.ask(hello())
    await told.ask(hello(first.said, Said(speaker="user", text="and?")))
    await told.ask(Ask(role="judge", messages="hello"))
    sampled = sum(len(request.completion.token_ids) for request in talker.requests)
    whole = len(talker.requests[1].prompt) + len(talker.requests[1].completion.token_ids)
    said = summary(told.session, {"solver": role, "judge": frozen})
    assert f"  solver: 1 rows of {whole} tokens, {sampled} of them sampled\n" in said
    assert "  judge: nothing, its policy is frozen\n" in said
    assert "3 turns, 1 echoed, 0 unmatched" in said
