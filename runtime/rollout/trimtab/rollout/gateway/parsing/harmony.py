"""gpt-oss: an answer is several messages, each with a head that says whether it is a thought, a word to the user or a
call, and with marks between them. So it is read by its marks also where there are no tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.rollout.gateway.exchange import Piece, Said, ToolCall
from trimtab.rollout.gateway.parsing.json_calls import values_in

CALL_END = "<|call|>"
_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", CALL_END, "<|return|>")
_HEADS = ("<|start|>", "<|channel|>", "to=")
"""What the head of a message begins with. An answer that begins otherwise is a word to the user."""
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTION = re.compile(r"\bto=functions\.([^\s<]+)")


@dataclass(frozen=True, kw_only=True)
class _Head:
    written: str
    """All of it, with the mark that ends it."""
    thought: bool = False
    function: str | None = None


class HarmonyReader:
    """Of one answer. Nothing is lost: what looked like a call and is none is given as text in the end."""

    def __init__(self, *, new_id: Callable[[], str], index: int = 0) -> None:
        self._new_id = new_id
        self._index = index
        self._held = ""
        self._head: _Head | None = None
        self._message_begun = False
        """Whether anything of the message was shown: a word to the user is set off from the one before."""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    def feed(self, written: str) -> list[Piece]:
        self._held += written
        return self._advance(last=False)

    def close(self) -> list[Piece]:
        """What was held back because it could have been the beginning of something."""
        return self._advance(last=True)

    @property
    def said(self) -> Said:
        """All of it, which is what the pieces say together."""
        return Said(
            speaker="assistant",
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            calls=tuple(self._calls),
        )

    def _advance(self, *, last: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while self._begin(last=last) if self._head is None else self._go_on(self._head, pieces, last=last):
            pass
        return pieces

    def _begin(self, *, last: bool) -> bool:
        """Whether it is known now what kind of message comes."""
        lead = self._held.lstrip()
        if not lead:
            return False
        if not lead.startswith(_HEADS):
            if not last and any(head.startswith(lead) for head in _HEADS):
                return False
            self._head = _Head(written="")
            return True
        written, found, rest = self._held.partition(_MESSAGE)
        if not found and not last:
            return False
        if not found:
            self._head = _Head(written="")
            return True
        channel, function = _CHANNEL.search(written), _FUNCTION.search(written)
        self._head = _Head(
            written=written + found,
            thought=channel is not None and channel[1] == "analysis" and function is None,
            function=None if function is None else function[1],
        )
        self._held = rest
        return True

    def _go_on(self, head: _Head, pieces: list[Piece], *, last: bool) -> bool:
        """Whether the message is at its end."""
        at, end = min(((self._held.find(end), end) for end in _ENDS if end in self._held), default=(-1, ""))
        if head.function is not None:
            if not end and not last:
                return False
            body, self._held = (self._held[:at], self._held[at + len(end) :]) if end else (self._held, "")
            self._note_call(head, head.function, body, end, pieces)
        elif end:
            self._note(head, self._held[:at], pieces)
            self._held = self._held[at + len(end) :]
        else:
            kept = 0 if last else _uncertain(self._held)
            self._note(head, self._held[: len(self._held) - kept], pieces)
            self._held = self._held[len(self._held) - kept :]
            return False
        self._head, self._message_begun = None, False
        return bool(end)

    def _note(self, head: _Head, text: str, pieces: list[Piece]) -> None:
        if not text:
            return
        told = self._reasoning if head.thought else self._text
        text = f"\n{text}" if told and not self._message_begun else text
        self._message_begun = True
        told.append(text)
        piece = Piece(index=self._index, reasoning=text) if head.thought else Piece(index=self._index, text=text)
        pieces.append(piece)

    def _note_call(self, head: _Head, function: str, body: str, end: str, pieces: list[Piece]) -> None:
        values = values_in(body)
        if values is None or len(values) != 1:
            self._note(_Head(written=""), f"{head.written}{body}{end}", pieces)
            return
        call = ToolCall(call_id=self._new_id(), name=function, arguments=body.strip())
        self._calls.append(call)
        pieces.append(Piece(index=self._index, call=call))


def _uncertain(held: str) -> int:
    """How many of the last characters may be the beginning of a mark that ends a message."""
    most = max(map(len, _ENDS)) - 1
    sizes = range(min(len(held), most), 0, -1)
    return next((size for size in sizes if any(end.startswith(held[-size:]) for end in _ENDS)), 0)
