"""How much of an answer has been sent: what is still missing when it is whole, and whether the two agree."""

from __future__ import annotations

from dataclasses import replace

from trimtab.rollout.gateway.exchange import Answer, GatewayError, Piece, ToolCall


class BrokenStream(GatewayError):
    """The pieces of an answer are not what the answer is."""


class Progress:
    """Of one answer. A model writes one call after another, so the parts of a call are never mixed with another's."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    @property
    def call_number(self) -> int:
        """Of the call that is being written."""
        return len(self._calls) - 1

    def take(self, piece: Piece) -> bool:
        """Count a piece as sent; whether it begins a call."""
        if piece.text:
            self._text.append(piece.text)
        if piece.reasoning:
            self._reasoning.append(piece.reasoning)
        if piece.call is None:
            return False
        if self._calls and self._calls[-1].call_id == piece.call.call_id:
            last = self._calls[-1]
            self._calls[-1] = replace(last, arguments=last.arguments + piece.call.arguments)
            return False
        if any(call.call_id == piece.call.call_id for call in self._calls) or not piece.call.name:
            raise BrokenStream(f"a part of call {piece.call.call_id} came without the call's beginning")
        self._calls.append(piece.call)
        return True

    def missing(self, answer: Answer) -> list[Piece]:
        """What is to be sent so that nothing of the answer is lost. Raises BrokenStream if too much was sent."""
        said = answer.said
        rest = []
        if reasoning := self._after(said.reasoning, "".join(self._reasoning), "reasoning"):
            rest.append(Piece(index=self._index, reasoning=reasoning))
        if text := self._after(said.text, "".join(self._text), "text"):
            rest.append(Piece(index=self._index, text=text))
        if len(self._calls) > len(said.calls):
            raise BrokenStream(f"{len(self._calls)} calls were sent, the answer has {len(said.calls)}")
        for place, call in enumerate(said.calls):
            if place >= len(self._calls):
                rest.append(Piece(index=self._index, call=call))
                continue
            sent = self._calls[place]
            if (sent.call_id, sent.name) != (call.call_id, call.name):
                raise BrokenStream(f"call {sent.call_id} of {sent.name} was sent, the answer calls {call.name}")
            arguments = self._after(call.arguments, sent.arguments, f"arguments of {call.name}")
            if arguments and place < len(self._calls) - 1:
                raise BrokenStream(f"the arguments of {call.name} were not finished before the next call")
            if arguments:
                rest.append(Piece(index=self._index, call=replace(call, arguments=arguments)))
        return rest

    def _after(self, whole: str, sent: str, what: str) -> str:
        if not whole.startswith(sent):
            raise BrokenStream(f"the {what} that was sent is not what the answer begins with")
        return whole[len(sent) :]
