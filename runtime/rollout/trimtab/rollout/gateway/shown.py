"""What an agent is shown of an answer while its tokens come: text, thoughts and calls, none of it ever taken back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from trimtab.rollout.gateway.exchange import Ask, Piece, Said
from trimtab.rollout.gateway.role_lineages import Place
from trimtab.rollout.live_text import LiveText, StopGuard
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.workflows.conversation import Turn


class Shown:
    """One answer. What it says in the end is what its pieces say together."""

    def __init__(
        self, tokenizer: Tokenizer, place: Place, ask: Ask, *, index: int, new_call_id: Callable[[], str]
    ) -> None:
        self._index = index
        self._tokenizer = tokenizer
        # Families that mark their calls with special tokens: those are part of what is read.
        marks = tokenizer.decode_marks if place.family.marks_are_special else None
        self._reads_marks = marks is not None
        self._text = LiveText(marks or tokenizer.decode)
        self._stop = StopGuard(ask.stop)
        self._plain: list[str] | None = [] if isinstance(ask.messages, str) else None
        """What is no chat is text and nothing else."""
        self._reader = place.family.reader(ask.tools, new_id=new_call_id, index=index, thinking=place.thinking)
        self._written: list[str] = []
        self._last_mark: list[int] = []
        """The latest token, where it is one that may be the end of the turn: that is not shown."""
        self.tokens = 0

    def hear(self, token_ids: Sequence[int]) -> list[Piece]:
        self.tokens += len(token_ids)
        coming = [*self._last_mark, *token_ids]
        self._last_mark = []
        if self._reads_marks and coming and self._tokenizer.is_mark(coming[-1]):
            self._last_mark = [coming.pop()]
        return self._read(coming, last=False)

    def end(self, turn: Turn) -> list[Piece]:
        """Whatever was not heard of it yet."""
        pieces = self.hear(turn.token_ids[self.tokens :])
        rest = [] if turn.completion.finish == "stop" else self._last_mark
        pieces += self._read(rest, last=True)
        return pieces if self._plain is not None else pieces + self._reader.close()

    @property
    def said(self) -> Said:
        return self._reader.said if self._plain is None else Said(speaker="assistant", text="".join(self._plain))

    @property
    def written(self) -> str:
        """All that the policy wrote, with the text that stopped it, and without the mark that ended its turn."""
        return "".join(self._written)

    def _read(self, token_ids: Sequence[int], *, last: bool) -> list[Piece]:
        written = self._text.feed(token_ids, last=last)
        self._written.append(written)
        text = self._stop.feed(written, last=last)
        if self._plain is None:
            return self._reader.feed(text)
        self._plain.append(text)
        return [Piece(index=self._index, text=text)] if text else []


class Arrivals:
    """Pieces of answers under way that the agent has not been sent yet: never more than the answers have tokens."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self._news = asyncio.Event()

    def add(self, pieces: Iterable[Piece]) -> None:
        self._pieces.extend(pieces)
        self._news.set()

    def no_more(self, _: object = None) -> None:
        self._news.set()

    async def wait(self) -> None:
        """Until there are pieces, or there will be no more."""
        # However long: a deadline is on what gives the answers.
        await self._news.wait()
        self._news.clear()

    def taken(self) -> Iterator[Piece]:
        while self._pieces:
            yield self._pieces.popleft()
