"""A session that answers by a script: for tests of what goes over the wire, whatever it is that answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from trimtab.rollout.gateway.exchange import Answer, Ask, GatewayError, Piece, Said, ToolCall

Script = Callable[[Ask], Sequence[Answer]]


def answer(
    text: str = "",
    *calls: ToolCall,
    reasoning: str = "",
    finish: str | None = None,
    prompt_tokens: int = 7,
    cached_tokens: int = 3,
    completion_tokens: int = 5,
) -> Answer:
    said = Said(speaker="assistant", text=text, reasoning=reasoning, calls=calls)
    ended = finish or ("tool_calls" if calls else "stop")
    assert ended in ("stop", "length", "tool_calls")
    return Answer(
        said=said,
        finish=ended,  # type: ignore[arg-type]
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached_tokens,
        version=4,
    )


def call(name: str, arguments: str, *, call_id: str = "call_1") -> ToolCall:
    return ToolCall(call_id=call_id, name=name, arguments=arguments)


def cut(text: str, at: Sequence[int]) -> Iterator[str]:
    """In pieces of these lengths, again and again."""
    begin, turn = 0, 0
    while begin < len(text):
        size = at[turn % len(at)]
        yield text[begin : begin + size]
        begin, turn = begin + size, turn + 1


def pieces_of(index: int, whole: Answer, *, sizes: Sequence[int]) -> Iterator[Piece]:
    """As a model writes: its thoughts, its words, one call after the other."""
    for part in cut(whole.said.reasoning, sizes):
        yield Piece(index=index, reasoning=part)
    for part in cut(whole.said.text, sizes):
        yield Piece(index=index, text=part)
    for one in whole.said.calls:
        yield Piece(index=index, call=replace(one, arguments=""))
        for part in cut(one.arguments, sizes):
            yield Piece(index=index, call=ToolCall(call_id=one.call_id, name="", arguments=part))


@dataclass
class ScriptedSession:
    """Says what the script says, streamed in pieces of `sizes` characters. It keeps what it was asked."""

    script: Script
    sizes: Sequence[int] = (3,)
    fails_after: tuple[int, GatewayError] | None = None
    """After so many pieces of a stream, this."""
    holds_after: int | None = None
    """After so many pieces of a stream it says no more, until it is cancelled."""
    asked: list[Ask] = field(default_factory=list)
    waiting: int = 0
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: asyncio.Event = field(default_factory=asyncio.Event)
    """A stream was left before its end."""

    async def ask(self, ask: Ask) -> tuple[Answer, ...]:
        self.asked.append(ask)
        if self.holds_after is not None:
            await self._hold()
        return tuple(self.script(ask))

    async def stream(self, ask: Ask) -> AsyncIterator[Piece | Answer]:
        self.asked.append(ask)
        answers = self.script(ask)
        try:
            async for part in self._parts(answers):
                yield part
        except (GeneratorExit, asyncio.CancelledError):
            self.given_up.set()
            raise

    async def _parts(self, answers: Sequence[Answer]) -> AsyncIterator[Piece | Answer]:
        sent = 0
        for index, whole in enumerate(answers):
            for piece in pieces_of(index, whole, sizes=self.sizes):
                if self.fails_after is not None and sent == self.fails_after[0]:
                    raise self.fails_after[1]
                if sent == self.holds_after:
                    await self._hold()
                yield piece
                sent += 1
                await asyncio.sleep(0)
        for whole in answers:
            yield whole

    async def _hold(self) -> None:
        with self._counted():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


def saying(*answers: Answer) -> ScriptedSession:
    return ScriptedSession(lambda _: answers)


def failing(error: GatewayError) -> ScriptedSession:
    def script(_: Ask) -> Sequence[Answer]:
        raise error

    return ScriptedSession(script)
