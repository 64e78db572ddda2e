"""What an agent sees of an answer that is still being sampled, and what becomes of one that it does not wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.gateway.talkers import Talker, session_of
from tests.support.gateway.tokenizers import end_of_turn, tokenizer_of
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.gateway.budget import BudgetLimits
from trimtab.rollout.gateway.exchange import Answer, Ask, BudgetSpent, Piece, Refused, Said, Tool
from trimtab.rollout.gateway.session import EpisodeSession
from trimtab.rollout.policy.sampler import Completion, Listener
from trimtab.rollout.workflows.forest import forest_of
from trimtab.rollout.workflows.team import Role

LOOK = Tool(name="look", description="Looks.", parameters={"type": "object", "properties": {}})
ASK = Ask(role="solver", messages=(Said(speaker="user", text="?"),))


class LiveTalker(Talker):
    """Says its tokens one by one to whoever listens. Behind `holds_after` of them it waits until it is let go on."""

    holds_after: int | None = None

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.go_on = asyncio.Event()
        self.cancelled = False

    async def complete(
        self,
        prompt: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        deadline_s: float,
        listener: Listener | None = None,
    ) -> Completion:
        completion = await super().complete(prompt, settings, request_id=request_id, deadline_s=deadline_s)
        for number, token in enumerate(completion.token_ids[:-1]):
            if number == self.holds_after:
                try:
                    await self.go_on.wait()
                except asyncio.CancelledError:
                    self.cancelled = True
                    raise
            if listener is not None:
                listener([token])
        return completion


def talking(family: str, text: str, **limits: Any) -> tuple[EpisodeSession, LiveTalker]:
    """It has a token for each byte of what is not ASCII."""
    talker = LiveTalker(tokenizer_of(family), lambda _: text, end=end_of_turn(family), misspelt=0.0)
    solver = Role("solver", "solver", tokenizer_of(family), talker, SamplingSettings(max_new_tokens=400))
    return session_of(solver, limits=BudgetLimits(**limits)), talker


def trained(session: EpisodeSession) -> list[int]:
    return [token for row in forest_of("solver", session.scored(1.0)).rows for token in row.token_ids]


@pytest.mark.parametrize("text", ["plain words", "né 你好 🙂🙂", "<think>\nhm\n</think>\n\nIt is é."])
async def test_pieces_come_token_by_token_and_are_the_answer(text: str) -> None:
    session, talker = talking("qwen3", text)
    came = [one async for one in session.stream(ASK)]
    answer = came.pop()
    assert isinstance(answer, Answer)
    pieces = [one for one in came if isinstance(one, Piece)]
    assert len(pieces) > 3
    assert "".join(piece.text for piece in pieces) == answer.said.text
    assert "".join(piece.reasoning for piece in pieces) == answer.said.reasoning
    assert not any("\ufffd" in piece.text + piece.reasoning for piece in pieces)
    (whole,) = await session.ask(ASK)
    assert whole.said == answer.said, "streamed or not"
    assert trained(session)[-len(talker.requests[1].completion.token_ids) :] == list(
        talker.requests[1].completion.token_ids
    )


async def test_the_first_words_are_shown_while_the_last_are_not_sampled() -> None:
    session, talker = talking("smollm2", "first words, and then the last ones")
    talker.holds_after = 12
    stream = session.stream(ASK)
    first = await anext(stream)
    assert isinstance(first, Piece)
    assert not talker.go_on.is_set()
    talker.go_on.set()
    rest = [one async for one in stream]
    assert first.text + "".join(one.text for one in rest if isinstance(one, Piece)) == rest[-1].said.text  # type: ignore[union-attr]


async def test_what_may_be_a_stop_text_is_not_shown_before_it_is_known_to_be_none() -> None:
    session, _ = talking("smollm2", "one</b>two</answer>")
    ask = Ask(role="solver", messages=ASK.messages, stop=("</answer>",))
    came = [one async for one in session.stream(ask)]
    shown = [one.text for one in came if isinstance(one, Piece)]
    assert "".join(shown) == "one</b>two"
    assert "</b" in shown, "held back until its third letter"


async def test_a_call_is_shown_when_it_is_whole_and_text_before_it() -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    session, talker = talking("qwen2.5", f"Let me see.\n{call}")
    talker.holds_after = 30
    stream = session.stream(Ask(role="solver", messages=ASK.messages, tools=(LOOK,)))
    before: list[Piece] = []
    while "".join(piece.text for piece in before) != "Let me see.":
        piece = await anext(stream)
        assert isinstance(piece, Piece)
        before.append(piece)
    assert not any(piece.call for piece in before)
    talker.go_on.set()
    rest = [one async for one in stream]
    assert [one.call.name for one in rest if isinstance(one, Piece) and one.call] == ["look"]


async def test_an_answer_that_breaks_its_schema_is_refused_before_anything_is_shown() -> None:
    session, _ = talking("smollm2", '{"a": "x"}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    stream = session.stream(Ask(role="solver", messages=ASK.messages, schema=schema))
    with pytest.raises(Refused, match="schema"):
        await anext(stream)


async def test_who_leaves_a_stream_gives_up_the_request_and_pays_for_what_it_was_shown() -> None:
    session, talker = talking("smollm2", "w" * 60, tokens=50, turns=2)
    talker.holds_after = 20
    stream = session.stream(Ask(role="solver", messages=ASK.messages, max_tokens=61))
    shown = 0
    while shown < 20:
        piece = await anext(stream)
        assert isinstance(piece, Piece)
        shown += len(piece.text)
    await stream.aclose()  # type: ignore[attr-defined]
    assert talker.cancelled
    assert forest_of("solver", session.scored(1.0)).rows == ()
    talker.go_on.set()
    (answer,) = await session.ask(Ask(role="solver", messages=ASK.messages, max_tokens=61))
    assert answer.completion_tokens == 50 - 20, "what was not shown is given back"
    with pytest.raises(BudgetSpent, match=r"budget\.turns"):
        await session.ask(ASK)
