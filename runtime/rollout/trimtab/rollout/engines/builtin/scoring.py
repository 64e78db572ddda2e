"""Scores tokens that are given: their logprobs, or what a value head says at each. Nothing is sampled.

Long sequences are computed in several steps, so that sampling beside them, pauses and weight updates wait for one step
at most. All numbers of a sequence are of one version: one that new weights overtake begins again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

import torch

from trimtab.rollout.engines.builtin.model import EngineModel
from trimtab.rollout.engines.builtin.transformer import Piece


@dataclass(kw_only=True, eq=False)
class Scoring:
    """One request; owned by the model's thread once it is queued, until `done`."""

    request_id: str
    input_ids: list[int]
    temperature: float = 1.0
    numbers: list[float] = field(default_factory=list)
    """Logprobs of all tokens after the first, or a value for each token."""
    finish: Literal["length", "abort"] | None = None
    weight_version: str = ""
    """Of the weights that scored it; of one that was aborted, of those that were served then."""
    done: Future[None] = field(default_factory=Future)


class _Progress:
    """How far a sequence is, with the keys and values of what is behind it."""

    def __init__(self, scoring: Scoring, cache: torch.Tensor) -> None:
        self.scoring = scoring
        self.tokens = torch.tensor(scoring.input_ids)
        self.cache = cache
        self.done = 0

    @property
    def finished(self) -> bool:
        return self.done == len(self.tokens)

    def advance(self, budget: int) -> Piece:
        start, self.done = self.done, min(len(self.tokens), self.done + budget)
        return Piece(tokens=self.tokens[None, start : self.done], cache=self.cache, start=start)


class ScoringBatch:
    """Owned by the model's thread. Sequences under way have `max_tokens` together, or there is one of them."""

    def __init__(self, model: EngineModel, *, max_tokens: int, step_tokens: int) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._step_tokens = step_tokens
        self._waiting: deque[Scoring] = deque()
        self._under_way: list[_Progress] = []
        self.scored_tokens = 0

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._under_way)

    @property
    def running(self) -> int:
        return len(self._under_way)

    def queue(self, scoring: Scoring) -> None:
        self._waiting.append(scoring)

    def restart(self) -> None:
        """What is under way begins again, with the weights that are served then."""
        for progress in reversed(self._under_way):
            progress.scoring.numbers.clear()
            self._waiting.appendleft(progress.scoring)
        self._under_way = []

    def end(self, chosen: Callable[[Scoring], bool]) -> list[Scoring]:
        """Take requests out, wherever they are. They are marked as aborted."""
        held = [*(progress.scoring for progress in self._under_way), *self._waiting]
        ended = [scoring for scoring in held if chosen(scoring)]
        for scoring in ended:
            scoring.finish = "abort"
            scoring.numbers.clear()
        self._waiting = deque(scoring for scoring in self._waiting if scoring.finish is None)
        self._under_way = [progress for progress in self._under_way if progress.scoring.finish is None]
        return ended

    @torch.inference_mode()
    def step(self) -> list[Scoring]:
        """Compute some tokens, and return the requests that are done."""
        self._admit()
        budget = self._step_tokens
        advanced: list[_Progress] = []
        pieces: list[Piece] = []
        for progress in self._under_way:
            if budget <= 0:
                break
            piece = progress.advance(budget)
            budget -= piece.tokens.numel()
            advanced.append(progress)
            pieces.append(piece)
        if not pieces:
            return []
        targets = [progress.tokens[piece.start + 1 :] for progress, piece in zip(advanced, pieces, strict=True)]
        temperatures = [progress.scoring.temperature for progress in advanced]
        for progress, numbers in zip(advanced, self._model.score(pieces, targets, temperatures), strict=True):
            progress.scoring.numbers += numbers
        self.scored_tokens += sum(piece.tokens.numel() for piece in pieces)
        finished = [progress.scoring for progress in advanced if progress.finished]
        for scoring in finished:
            scoring.finish = "length"
        self._under_way = [progress for progress in self._under_way if not progress.finished]
        return finished

    def _admit(self) -> None:
        held = sum(len(progress.tokens) for progress in self._under_way)
        while self._waiting:
            length = len(self._waiting[0].input_ids)
            if self._under_way and held + length > self._max_tokens:
                return
            scoring = self._waiting.popleft()
            self._under_way.append(_Progress(scoring, self._model.kv_shape.zeros(1, length)))
            held += length
