"""What agents ask and are answered, and what of it the policies learn from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.gateway.talkers import Talker, session_of, talking_role
from tests.support.gateway.tokenizers import FAMILIES, end_of_turn, tokenizer_of
from tests.support.rollout.speakers import EchoSampler, role
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.spans import Producer, model_mask
from trimtab.rollout.engines.contract import EngineOverloaded, EngineRefused, EngineTimeout
from trimtab.rollout.gateway.budget import BudgetLimits
from trimtab.rollout.gateway.exchange import (
    Answer,
    Ask,
    BudgetSpent,
    Piece,
    Refused,
    Said,
    Tool,
    Unavailable,
    UnknownRole,
)
from trimtab.rollout.gateway.session import EpisodeSession
from trimtab.rollout.gateway.tally import Counted
from trimtab.rollout.workflows.forest import Row, forest_of

LOOK = Tool(name="look", description="Looks.", parameters={"type": "object", "properties": {"at": {"type": "string"}}})
CALL = '<tool_call>\n{"name": "look", "arguments": {"at":"sky"}}\n</tool_call>'


def user(text: str) -> Said:
    return Said(speaker="user", text=text)


def lines(*said: str) -> Any:
    return lambda number: said[number % len(said)]


def rows(session: EpisodeSession, name: str = "solver") -> tuple[Row, ...]:
    scored = [one for one in session.scored(1.0) if one.conversation.role.name == name]
    return forest_of(name, scored).rows


def trained(rows: Sequence[Row]) -> list[int]:
    return [
        token
        for row in rows
        for token, is_trained in zip(row.token_ids, model_mask(row.spans).tolist(), strict=True)
        if is_trained
    ]


def sampled(talker: Talker) -> list[int]:
    return [token for request in talker.requests for token in request.completion.token_ids]


async def answer(session: EpisodeSession, *messages: Said, **more: Any) -> Said:
    (one,) = await session.ask(Ask(role="solver", messages=messages, **more))
    return one.said


def echoed(said: Said) -> Said:
    """As SDKs send it back: without thoughts, with arguments spelt anew."""
    calls = tuple(replace(call, arguments=json.dumps(json.loads(call.arguments), indent=1)) for call in said.calls)
    return replace(said, reasoning="", calls=calls)


WITH_TOOLS = {
    "qwen2.5": f"Let me see.\n{CALL}",
    "qwen3": f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}",
    "llama3": '{"name": "look", "parameters": {"at": "sky"}}',
    "glm": "\n<think></think>\nLet me see.\n<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>sky</arg_value>\n"
    "</tool_call>",
    "gpt-oss": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.look<|channel|>commentary json"
    '<|message|>{"at": "sky"}<|call|>',
}
BLUE = {"gpt-oss": "<|channel|>final<|message|>It is blue.<|return|>"}


@pytest.mark.parametrize("family", WITH_TOOLS)
async def test_a_loop_of_tool_calls_is_one_row_of_the_sampled_tokens(family: str) -> None:
    solver, talker = talking_role(
        family, lines(WITH_TOOLS[family], WITH_TOOLS[family], BLUE.get(family, "It is blue."))
    )
    session = session_of(solver)
    history = [user("What colour?")]
    for _ in range(2):
        said = await answer(session, *history, tools=(LOOK,))
        assert [call.name for call in said.calls] == ["look"]
        history += [echoed(said), Said(speaker="tool", text="blue, I think", answers=said.calls[0].call_id)]
    last = await answer(session, *history, tools=(LOOK,))
    assert last.text == "It is blue."
    (row,) = rows(session)
    assert tuple(row.token_ids) == talker.requests[-1].prompt + talker.requests[-1].completion.token_ids
    assert trained([row]) == sampled(talker)
    assert session.counts[Counted.ECHOED] == 3
    assert session.counts[Counted.UNMATCHED] == session.counts[Counted.REWRITTEN] == 0
    tokenizer = tokenizer_of(family)
    assert tokenizer.encode(tokenizer.decode(sampled(talker))) != sampled(talker), "spelt as no encoder would"


GOOD = {
    "mistral": " Good.",
    "glm": "\n<think></think>\nGood.",
    "gpt-oss": "<|channel|>final<|message|>Good.<|return|>",
}
"""What these models write for it. Mistral's template takes the space off and puts it before the text again."""


@pytest.mark.parametrize("family", FAMILIES)
async def test_what_is_appended_is_what_the_template_shows(family: str) -> None:
    """Decoded, the prompt of the second turn is the whole conversation as the template renders it."""
    solver, talker = talking_role(family, lines(GOOD.get(family, "Good."), "Fine."))
    session = session_of(solver)
    first = await answer(session, user("How is it?"))
    await answer(session, user("How is it?"), echoed(first), user("And you?"))
    tokenizer = tokenizer_of(family)
    assert tokenizer.render is not None
    assert tokenizer.decode_marks is not None
    shown = tokenizer.render(
        [
            {"role": "user", "content": "How is it?"},
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "And you?"},
        ],
        {},
    )
    prompt = tokenizer.decode_marks(list(talker.requests[1].prompt))
    # A turn that gpt-oss ended is shown with another mark when it is not the last.
    read = shown.replace("Good.<|end|>", "Good.<|return|>") if family == "gpt-oss" else shown
    if family == "deepseek":
        # It says nothing of thoughts that the prompt opened.
        assert session.counts[Counted.REWRITTEN] == 1
    assert prompt == read
    assert trained(rows(session)) == sampled(talker)


async def test_thoughts_that_the_template_drops_begin_a_lineage_and_are_trained_where_they_were_thought() -> None:
    said = lines("<think>\nfirst thought\n</think>\n\nOne.", "<think>\nsecond thought\n</think>\n\nTwo.")
    solver, talker = talking_role("qwen3", said)
    session = session_of(solver)
    first = await answer(session, user("Count."))
    assert (first.reasoning, first.text) == ("first thought", "One.")
    await answer(session, user("Count."), echoed(first), user("On."))
    tokenizer = tokenizer_of("qwen3")
    assert "first thought" not in tokenizer.decode(list(talker.requests[1].prompt))
    assert session.counts[Counted.REWRITTEN] == 1
    both = rows(session)
    assert len(both) == 2
    assert trained(both) == sampled(talker)


async def test_thoughts_may_be_kept_so_that_the_episode_is_one_row() -> None:
    said = lines("<think>\nfirst thought\n</think>\n\nOne.", "<think>\nsecond thought\n</think>\n\nTwo.")
    solver, talker = talking_role("qwen3", said)
    session = session_of(solver, keep_thoughts=True)
    first = await answer(session, user("Count."))
    await answer(session, user("Count."), echoed(first), user("On."))
    assert "first thought" in tokenizer_of("qwen3").decode(list(talker.requests[1].prompt))
    (row,) = rows(session)
    assert trained([row]) == sampled(talker)


async def test_answers_to_calls_that_the_agent_renamed_are_shown_under_our_ids() -> None:
    solver, talker = talking_role("mistral", lines('[TOOL_CALLS] [{"name": "look", "arguments": {}}]', "Blue."))
    session = session_of(solver)
    first = await answer(session, user("?"), tools=(LOOK,))
    renamed = replace(first, calls=(replace(first.calls[0], call_id="abcdefghi"),))
    told = Said(speaker="tool", text="blue", answers="abcdefghi")
    await answer(session, user("?"), renamed, told, tools=(LOOK,))
    prompt = tokenizer_of("mistral").decode(list(talker.requests[1].prompt))
    assert f'"call_id": "{first.calls[0].call_id}"' in prompt
    assert len(rows(session)) == 1


async def test_an_edited_turn_is_text_and_the_sampled_one_is_still_trained() -> None:
    solver, talker = talking_role("qwen2.5", lines("One.", "Two."))
    session = session_of(solver)
    first = await answer(session, user("Count."))
    await answer(session, user("Count."), replace(first, text="Won."), user("On."))
    assert session.counts[Counted.UNMATCHED] == 1
    both = rows(session)
    assert trained(both) == sampled(talker)
    tokenizer = tokenizer_of("qwen2.5")
    assert "Won." in tokenizer.decode(list(both[1].token_ids))
    assert {span.producer for span in both[1].spans} == {Producer.PROMPT, Producer.MODEL}


async def test_branches_of_one_history_share_the_turns_before_them() -> None:
    solver, talker = talking_role("qwen2.5", lines("One.", "Two.", "Three.", "Four."))
    session = session_of(solver)
    first = await answer(session, user("Count."))
    await answer(session, user("Count."), first, user("On."))
    three, four = await session.ask(Ask(role="solver", messages=(user("Count."), first, user("Back.")), count=2))
    assert {three.said.text, four.said.text} == {"Three.", "Four."}
    found = rows(session)
    assert len(found) == 3
    assert sorted(trained(found)) == sorted(sampled(talker))
    assert [Producer.ECHO in {span.producer for span in row.spans} for row in found] == [False, True, True]
    assert three.cached_tokens == len(talker.requests[0].prompt) + len(talker.requests[0].completion.token_ids)
    assert three.prompt_tokens == len(talker.requests[2].prompt)
    # The choice that the agent takes is the one that goes on.
    await answer(session, user("Count."), first, user("Back."), three.said, user("More."))
    assert talker.requests[-1].prompt[: three.prompt_tokens + three.completion_tokens] in [
        request.prompt + request.completion.token_ids for request in talker.requests[2:4]
    ]
    assert len(rows(session)) == 3


async def test_answers_that_are_asked_for_side_by_side_part() -> None:
    solver, talker = talking_role("smollm2", lines("One.", "Two.", "Three."))
    session = session_of(solver)
    first = await answer(session, user("Count."))
    asks = [answer(session, user("Count."), first, user("On.")) for _ in range(2)]
    assert {said.text for said in await asyncio.gather(*asks)} == {"Two.", "Three."}
    assert len(rows(session)) == 2
    assert sorted(trained(rows(session))) == sorted(sampled(talker))


async def test_a_policy_that_learns_keeps_its_sampling_and_counts_what_was_wanted_otherwise() -> None:
    solver, talker = talking_role("smollm2", lines("abc"))
    session = session_of(solver)
    wishes = {"temperature": 0.2, "top_p": 1.0, "seed": 0, "frequency_penalty": 0, "logit_bias": None}
    await answer(session, user("?"), wishes=wishes, max_tokens=2, stop=("x",))
    (request,) = talker.requests
    assert (request.settings.temperature, request.settings.max_new_tokens, request.settings.stop) == (1.0, 2, ("x",))
    assert session.counts[Counted.OVERRIDDEN] == 2
    (scored,) = session.scored(1.0, reward_parts={"own": 2.0})
    assert scored.reward_parts == {"gateway.turns": 1, "gateway.lineages": 1, "gateway.overridden": 2, "own": 2}


async def test_a_frozen_role_takes_what_the_agent_asks_and_is_not_trained() -> None:
    solver, talker = talking_role("smollm2", lines("abc"), frozen=True)
    session = session_of(solver)
    await answer(session, user("?"), wishes={"temperature": 0.2, "top_p": 0.5, "seed": 7})
    settings = talker.requests[0].settings
    assert (settings.temperature, settings.top_p, settings.seed) == (0.2, 0.5, 7)
    assert session.scored(1.0) == ()
    with pytest.raises(Refused, match="frequency_penalty: role solver cannot follow it"):
        await answer(session, user("?"), wishes={"frequency_penalty": 0.5})
    with pytest.raises(Refused, match="temperature is -1; give one from 0 to 100"):
        await answer(session, user("?"), wishes={"temperature": -1})


async def test_a_text_that_stops_an_answer_is_sampled_and_not_shown() -> None:
    solver, talker = talking_role("smollm2", lines("Thought: look\nObservation:", "Fine."))
    session = session_of(solver)
    first = await answer(session, user("?"), stop=("Observation:",))
    assert first.text == "Thought: look\n"
    await answer(session, user("?"), first, user("sky"))
    (row,) = rows(session)
    assert trained([row]) == sampled(talker)


async def test_completions_go_on_from_the_tokens_of_what_they_repeat() -> None:
    solver, talker = talking_role("smollm2", lines("one two Stop:", "three", "four"))
    session = session_of(replace(solver, tokenizer=replace(solver.tokenizer, render=None)))
    (first,) = await session.ask(Ask(role="solver", messages="Count: ", stop=("Stop:",)))
    assert first.said.text == "one two "
    await session.ask(Ask(role="solver", messages="Count: one two Stop: now "))
    (row,) = rows(session)
    assert trained([row]) == sampled(talker)
    await session.ask(Ask(role="solver", messages="Count: one two and now "))
    assert session.counts[Counted.UNMATCHED] == 1
    assert len(rows(session)) == 2
    assert trained(rows(session)) == sampled(talker)


async def test_a_stream_says_what_the_answer_says() -> None:
    solver, _ = talking_role("qwen3", lines(WITH_TOOLS["qwen3"]))
    session = session_of(solver)
    came = [one async for one in session.stream(Ask(role="solver", messages=(user("?"),), tools=(LOOK,), count=2))]
    answers = [one for one in came if isinstance(one, Answer)]
    assert came[-2:] == answers
    assert [one.finish for one in answers] == ["tool_calls", "tool_calls"]
    for index, one in enumerate(answers):
        pieces = [piece for piece in came if isinstance(piece, Piece) and piece.index == index]
        assert "".join(piece.text for piece in pieces) == one.said.text == "Let me see."
        assert "".join(piece.reasoning for piece in pieces) == one.said.reasoning == "hm"
        assert tuple(piece.call for piece in pieces if piece.call) == one.said.calls


async def test_without_tools_nothing_is_a_call() -> None:
    solver, _ = talking_role("qwen2.5", lines(CALL))
    assert (await answer(session_of(solver), user("?"))).text == CALL


async def test_answers_are_checked_against_the_schema_and_trained_all_the_same() -> None:
    solver, talker = talking_role("smollm2", lines('{"a": 1}', '{"a": "x"}', "no"))
    session = session_of(solver)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert (await answer(session, user("?"), schema=schema)).text == '{"a": 1}'
    with pytest.raises(Refused, match=r"schema: the policy wrote something else: \$.a is not of type integer"):
        await answer(session, user("?"), schema=schema)
    with pytest.raises(Refused, match="it is not JSON"):
        await answer(session, user("?"), schema=schema)
    with pytest.raises(Refused, match=r"schema.properties.a.pattern is not checked here"):
        await answer(session, user("?"), schema={"properties": {"a": {"pattern": "x"}}})
    assert session.counts[Counted.OFF_SCHEMA] == 2
    assert trained(rows(session)) == sampled(talker)


async def test_tokens_that_are_left_bound_the_answer_and_then_the_budget_is_spent() -> None:
    solver, talker = talking_role("smollm2", lines("q" * 50))
    session = session_of(solver, limits=BudgetLimits(tokens=30))
    (one,) = await session.ask(Ask(role="solver", messages=(user("?"),), max_tokens=20))
    assert (one.completion_tokens, one.finish) == (20, "length")
    await session.ask(Ask(role="solver", messages=(user("?"),), count=2))
    assert [len(request.completion.token_ids) for request in talker.requests] == [20, 5, 5]
    with pytest.raises(BudgetSpent, match="30 of the episode's 30 tokens are sampled.*budget.tokens"):
        await answer(session, user("?"))


async def test_turns_and_seconds_are_budgets_too() -> None:
    solver, _ = talking_role("smollm2", lines("q"))
    now = [0.0]
    session = session_of(solver, limits=BudgetLimits(turns=2, seconds=10), clock=lambda: now[0])
    await answer(session, user("?"))
    with pytest.raises(BudgetSpent, match="1 of the episode's 2 turns are taken"):
        await answer(session, user("?"), count=2)
    await answer(session, user("?"))
    now[0] = 10.5
    with pytest.raises(BudgetSpent, match="the episode's 10 seconds are over"):
        await answer(session, user("?"))


@pytest.mark.parametrize(
    ("fails", "becomes"),
    [(EngineOverloaded("full"), Unavailable), (EngineRefused("long"), Refused), (EngineTimeout("late"), BudgetSpent)],
)
async def test_a_turn_that_came_to_nothing_is_neither_paid_nor_trained(fails: Any, becomes: Any) -> None:
    failing = role(EchoSampler(fails=fails), tokenizer=tokenizer_of("smollm2"))
    session = session_of(failing, limits=BudgetLimits(turns=1, tokens=8))
    for _ in range(3):
        with pytest.raises(becomes, match="role solver, turn 1"):
            await answer(session, user("?"))
    assert session.scored(1.0) == ()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (Ask(role="solver", messages=()), "messages is empty"),
        (
            Ask(role="solver", messages=(user("?"), Said(speaker="assistant", text="!"))),
            "the last one is the assistant",
        ),
        (Ask(role="solver", messages=(user("?"),), max_tokens=0), "max_tokens is 0"),
        (Ask(role="solver", messages=(user("?"),), count=0), "n is 0"),
        (Ask(role="solver", messages=(user("?"),), stop=("",)), "stop: "),
        (Ask(role="solver", messages=(user("?"),), tools=(LOOK,)), "tools: the chat template of role solver"),
        (Ask(role="solver", messages=""), "prompt is empty"),
    ],
)
async def test_what_cannot_be_asked_is_refused_by_its_field(ask: Ask, message: str) -> None:
    solver, talker = talking_role("smollm2", lines("q"))
    with pytest.raises(Refused, match=message):
        await session_of(solver).ask(ask)
    assert not talker.requests


async def test_messages_that_the_template_or_the_context_cannot_take_are_refused() -> None:
    solver, _ = talking_role("gemma", lines("q"))
    with pytest.raises(Refused, match="messages: .*System role not supported"):
        await answer(session_of(solver), Said(speaker="system", text="Be good."), user("?"))
    with pytest.raises(Refused, match="messages: no room for an answer"):
        await answer(session_of(replace(solver, context_tokens=5)), user("a long question"))
    with pytest.raises(Refused, match="has no chat template"):
        await answer(session_of(replace(solver, tokenizer=replace(solver.tokenizer, render=None))), user("?"))


async def test_roles_are_policies_of_their_own_and_others_are_named() -> None:
    planner, plans = talking_role("smollm2", lines("plan"), name="planner")
    verifier, checks = talking_role("qwen2.5", lines("good"), name="verifier")
    session = session_of(planner, verifier)
    await session.ask(Ask(role="planner", messages=(user("?"),)))
    await session.ask(Ask(role="verifier", messages=(user("?"),)))
    assert trained(rows(session, "planner")) == sampled(plans)
    assert trained(rows(session, "verifier")) == sampled(checks)
    with pytest.raises(UnknownRole, match="no role 'gpt-4o': .* there are planner, verifier"):
        await session.ask(Ask(role="gpt-4o", messages=(user("?"),)))
    session.close()
    with pytest.raises(Unavailable, match="the episode is over"):
        await session.ask(Ask(role="planner", messages=(user("?"),)))


async def test_more_lineages_than_an_episode_has_rows_are_counted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.rollout.gateway.session.MAX_PARTS", 2)
    solver, talker = talking_role("smollm2", lines("one", "two", "three"))
    session = session_of(solver)
    for _ in range(3):
        await answer(session, user("?"))
    assert trained(rows(session)) == sampled(talker)[: -len(talker.requests[2].completion.token_ids)]
    assert len(rows(session)) == 2
    assert session.counts[Counted.LEFT_OUT] == len(talker.requests[2].completion.token_ids)


async def test_the_worker_counts_what_could_not_be_matched() -> None:
    solver, _ = talking_role("smollm2", lines("q"))
    metrics = Metrics()
    session = session_of(solver, metrics=metrics)
    await answer(session, user("?"), Said(speaker="assistant", text="made up"), user("??"))
    value = metrics.registry.get_sample_value("trimtab_rollout_gateway_events_total", {"event": "unmatched"})
    assert value == 1


def test_the_end_of_a_turn_is_a_mark() -> None:
    for family in FAMILIES:
        assert tokenizer_of(family).is_mark(end_of_turn(family))
        assert not tokenizer_of(family).is_mark(tokenizer_of(family).encode("a")[0])
