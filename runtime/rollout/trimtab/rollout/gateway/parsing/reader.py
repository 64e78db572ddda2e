"""Reads what a model writes as it comes, and says what of it is text, a thought or a call as soon as that is certain.

Nothing is lost: what looked like a call and is none is given as text in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trimtab.rollout.gateway.exchange import Piece, Said, ToolCall

THOUGHT = ("<think>", "</think>")


@dataclass(frozen=True, kw_only=True)
class Called:
    """A call as the model wrote it. Most models give it no id."""

    name: str
    arguments: str
    call_id: str | None = None


class Calls(Protocol):
    """How a family writes its calls."""

    opening: str
    """What a call begins with; empty where the family has no calls."""
    closing: str | None
    """What it ends with; None where the calls are the rest of the answer."""
    only_first: bool
    """Calls begin with the answer, or not at all."""

    def read(self, body: str) -> tuple[Called, ...] | None:
        """What stands between opening and closing, or from the opening on where there is no closing mark; None where
        that is not a call.
        """


class Reader:
    """Of one answer. `thinking` is for prompts that have opened the thought already."""

    def __init__(self, calls: Calls, *, new_id: Callable[[], str], index: int = 0, thinking: bool = False) -> None:
        self._format = calls
        self._new_id = new_id
        self._index = index
        self._held = ""
        self._thinking = thinking
        self._in_call = False
        self._begun = False
        """Whether there was anything but white space outside of thoughts."""
        self._thought_possible = not thinking
        self._after_call = False
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
        moved = True
        while moved:
            if self._thinking:
                moved = self._think(pieces, last=last)
            elif self._in_call:
                moved = self._call(pieces, last=last)
            else:
                moved = self._talk(pieces, last=last)
        return pieces

    def _think(self, pieces: list[Piece], *, last: bool) -> bool:
        if not self._reasoning:
            self._held = self._held.lstrip("\n")
        thought, found, rest = self._held.partition(THOUGHT[1])
        if found:
            self._note_thought(thought.rstrip("\n"), pieces)
            self._held, self._thinking = rest, False
            return True
        kept = 0 if last else _uncertain(self._held, THOUGHT[1], also="\n")
        self._note_thought(self._held[: len(self._held) - kept], pieces)
        self._held = self._held[len(self._held) - kept :]
        return False

    def _talk(self, pieces: list[Piece], *, last: bool) -> bool:
        if self._after_call:
            # White space between calls, and behind the last of them, says nothing.
            self._held = self._held.lstrip()
            self._after_call = not self._held
        if not self._begun and (self._thought_possible or self._reasoning):
            lead = self._held.lstrip()
            if self._thought_possible and lead.startswith(THOUGHT[0]):
                self._held, self._thinking, self._thought_possible = lead[len(THOUGHT[0]) :], True, False
                return True
            if self._thought_possible and THOUGHT[0].startswith(lead) and not last:
                return False
            if self._reasoning:
                self._held = self._held.lstrip("\n")
        opening = self._format.opening
        at = self._held.find(opening) if opening else -1
        if at >= 0 and self._format.only_first and (self._begun or self._held[:at].strip()):
            at = -1
        if at >= 0:
            self._note_text(self._held[:at].rstrip(), pieces)
            # Calls without a closing mark keep their opening: the whole rest is read.
            self._held = self._held[at + len(opening) :] if not self._format.only_first else self._held[at:]
            self._in_call = True
            return True
        kept = 0 if last else _uncertain(self._held, opening, also=" \t\r\n")
        self._note_text(self._held[: len(self._held) - kept], pieces)
        self._held = self._held[len(self._held) - kept :]
        return False

    def _call(self, pieces: list[Piece], *, last: bool) -> bool:
        closing = self._format.closing
        body, found, rest = self._held.partition(closing) if closing else (self._held, "", "")
        if not found and not last:
            return False
        called = self._format.read(body)
        self._held, self._in_call = rest, False
        if called is None:
            opening = "" if self._format.only_first else self._format.opening
            self._note_text(f"{opening}{body}{found}", pieces)
            return True
        for one in called:
            taken = {call.call_id for call in self._calls}
            call_id = one.call_id if one.call_id and one.call_id not in taken else self._new_id()
            call = ToolCall(call_id=call_id, name=one.name, arguments=one.arguments)
            self._calls.append(call)
            pieces.append(Piece(index=self._index, call=call))
        self._begun = self._after_call = True
        return True

    def _note_text(self, text: str, pieces: list[Piece]) -> None:
        if text:
            self._text.append(text)
            self._begun = self._begun or bool(text.strip())
            pieces.append(Piece(index=self._index, text=text))

    def _note_thought(self, text: str, pieces: list[Piece]) -> None:
        if text:
            self._reasoning.append(text)
            pieces.append(Piece(index=self._index, reasoning=text))


def _uncertain(held: str, mark: str, *, also: str) -> int:
    """How many of the last characters may be the beginning of the mark, with white space before it."""
    begun = next((size for size in range(min(len(held), len(mark) - 1), 0, -1) if held.endswith(mark[:size])), 0)
    before = held[: len(held) - begun]
    return begun + len(before) - len(before.rstrip(also))
