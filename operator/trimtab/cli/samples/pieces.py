"""A row's tokens as text, by who wrote them. Decoding goes through the whole row in order, since a token alone may be
half a character or a word without the space before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean

from trimtab.fabric.wire.spans import Producer
from trimtab.fabric.wire.trajectory import Trajectory, TurnReward
from trimtab.rollout.live_text import LiveText

Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class Mark:
    """Text of one token, or of the few that make a character together, with the least likely one's log-probability."""

    text: str
    logprob: float


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one producer wrote without interruption. `version`, `turn`, `logprobs` and `marks` are of the model's own;
    turns are counted from 1.
    """

    producer: Producer
    text: str
    token_ids: tuple[int, ...]
    version: int | None = None
    turn: int | None = None
    reward: float | None = None
    """Of the turn, where the policy learns by turns."""
    logprobs: tuple[float, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def mean_logprob(self) -> float:
        return fmean(self.logprobs)


def pieces(row: Trajectory, decode: Decode) -> list[Piece]:
    return list(_pieces(row, decode))


def _pieces(row: Trajectory, decode: Decode) -> Iterator[Piece]:
    live = LiveText(decode)
    turns = _Turns(row.turn_rewards)
    token_ids, logprobs = row.token_ids.tolist(), row.logprobs.tolist()
    start = trained = 0
    for span in row.spans:
        own, start = token_ids[start : start + span.length], start + span.length
        if span.producer is not Producer.MODEL:
            turns.interrupted()
            yield Piece(producer=span.producer, text=live.feed(own, last=True), token_ids=tuple(own))
            continue
        said, trained = logprobs[trained : trained + span.length], trained + span.length
        # A span of one version may have several turns, where one follows the other without a word between them.
        for length in turns.lengths(span.length):
            ids, own = own[:length], own[length:]
            likely, said = said[:length], said[length:]
            marks = tuple(_marks(live, ids, likely))
            yield Piece(
                producer=span.producer,
                text="".join(mark.text for mark in marks),
                token_ids=tuple(ids),
                version=span.version,
                turn=turns.number,
                reward=turns.reward,
                logprobs=tuple(likely),
                marks=marks,
            )


def _marks(live: LiveText, token_ids: list[int], logprobs: list[float]) -> Iterator[Mark]:
    least = 0.0
    for place, (token, logprob) in enumerate(zip(token_ids, logprobs, strict=True), start=1):
        least = min(least, logprob)
        text = live.feed([token], last=place == len(token_ids))
        if text or place == len(token_ids):
            yield Mark(text, least)
            least = 0.0


class _Turns:
    """Where turns begin: as the row says, where the policy learns by turns, or else where somebody spoke between."""

    def __init__(self, rewards: tuple[TurnReward, ...]) -> None:
        self._rewards = rewards
        self._left = rewards[0].tokens if rewards else 0
        self._speaking = False
        self.number = 0

    @property
    def reward(self) -> float | None:
        return self._rewards[self.number - 1].reward if self._rewards else None

    def interrupted(self) -> None:
        self._speaking = False

    def lengths(self, tokens: int) -> Iterator[int]:
        """Of the parts of a span that belong to one turn each; `number` is that of the part that was asked for last."""
        if not self._rewards:
            self.number += not self._speaking
            self._speaking = True
            yield tokens
            return
        while tokens:
            self.number = max(1, self.number)
            if not self._left:
                self.number += 1
                self._left = self._rewards[self.number - 1].tokens
            length = min(tokens, self._left)
            self._left, tokens = self._left - length, tokens - length
            yield length
