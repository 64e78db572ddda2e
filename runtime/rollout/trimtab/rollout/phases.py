"""Where the time of an episode goes: what waits for weights, engines, tools and checks says so, and the episode's rows
carry it. What nobody speaks for is the workflow's own code.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from trimtab.fabric.wire.trajectory import MAX_PHASES, Phase

WEIGHTS = "weights"
"""Before an engine is asked: its weights are being swapped."""
ENGINE = "engine"
"""The whole answer of an engine that does not say when its first token came."""
PREFILL = "prefill"
"""Until the first token: the engine's queue, too."""
DECODE = "decode"
TOOLS = "tools"
PROGRAMS = "programs"
"""In the sandbox, where neither a tool nor a check asked for it."""
SCORING = "scoring"

_SHORTEST_S = 0.0005
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")


@dataclass
class Answer:
    """What an engine said of its answer."""

    first_token_s: float | None = None
    """How long it took until the first token."""


class EpisodePhases:
    """Of one episode, whose branches may run side by side: together they may take longer than it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._found: list[Phase] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """For what is begun in this context."""
        token = _episode.set(self)
        try:
            yield
        finally:
            _episode.reset(token)

    @property
    def found(self) -> tuple[Phase, ...]:
        return tuple(self._found)

    @contextmanager
    def timed(self, name: str) -> Iterator[Answer]:
        answer, began = Answer(), self._clock()
        try:
            yield answer
        finally:
            after, seconds = began - self._began, self._clock() - began
            if answer.first_token_s is None:
                self._add(Phase(name=name, after=after, seconds=seconds))
            else:
                first = min(answer.first_token_s, seconds)
                self._add(Phase(name=PREFILL, after=after, seconds=first))
                self._add(Phase(name=DECODE, after=after + first, seconds=seconds - first))

    def _add(self, phase: Phase) -> None:
        """Of an episode with very many, the later ones are added up."""
        if phase.seconds < _SHORTEST_S:
            return
        if len(self._found) < MAX_PHASES:
            self._found.append(phase)
            return
        last = max((n for n, one in enumerate(self._found) if one.name == phase.name), default=None)
        if last is not None:
            known = self._found[last]
            self._found[last] = Phase(name=known.name, after=known.after, seconds=known.seconds + phase.seconds)


_episode: ContextVar[EpisodePhases | None] = ContextVar("episode_phases", default=None)
_inside: ContextVar[bool] = ContextVar("inside_phase", default=False)


@contextmanager
def phase(name: str) -> Iterator[Answer]:
    """What is done in this block counts as this. Within another phase it does not count once more; outside of episodes
    not at all. Workflows may name phases of their own: small letters, digits, `-`.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"phase {name!r:.80}: a name is small letters, digits and -, and begins with a letter")
    episode = _episode.get()
    if episode is None or _inside.get():
        yield Answer()
        return
    token = _inside.set(True)
    try:
        with episode.timed(name) as answer:
            yield answer
    finally:
        _inside.reset(token)
