"""Tells the person who tries an agent what the gateway made of each request, and in the end what would be trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, cast

from trimtab.fabric.metrics import Metrics
from trimtab.rollout.gateway.exchange import Answer, Ask, GatewayError, Piece
from trimtab.rollout.gateway.session import EpisodeSession
from trimtab.rollout.gateway.tally import Counted, GatewayMetrics
from trimtab.rollout.workflows.conversation import Role
from trimtab.rollout.workflows.forest import forest_of

_TOLD = (Counted.ECHOED, Counted.UNMATCHED, Counted.REWRITTEN, Counted.PARTED, Counted.OVERRIDDEN, Counted.OFF_SCHEMA)
_request: ContextVar[Counter[Counted] | None] = ContextVar("request", default=None)


class _ByRequest(GatewayMetrics):
    """Counts for the request in whose context it happens: several are answered side by side."""

    def count(self, event: Counted, times: int) -> None:
        super().count(event, times)
        counts = _request.get()
        if counts is not None:
            counts[event] += times


class ToldSession:
    """Implements exchange.Session around an episode's."""

    def __init__(
        self, metrics: Metrics, make: Callable[[GatewayMetrics], EpisodeSession], *, tell: Callable[[str], None]
    ) -> None:
        self.session = make(_ByRequest(metrics))
        self._tell = tell

    async def ask(self, ask: Ask) -> tuple[Answer, ...]:
        counts: Counter[Counted] = Counter()
        _request.set(counts)
        try:
            answers = await self.session.ask(ask)
        except GatewayError as error:
            self._tell(f"{ask.role}: refused: {error}")
            raise
        self._tell(line(ask.role, answers, counts))
        return answers

    async def stream(self, ask: Ask) -> AsyncIterator[Piece | Answer]:
        counts: Counter[Counted] = Counter()
        answers: list[Answer] = []
        # A generator, in the session that there is: what is given up is told so.
        async with aclosing(cast(Any, self.session.stream(ask))) as parts:
            try:
                while True:
                    # Every part is asked for by a task with a context of its own.
                    _request.set(counts)
                    part = await anext(parts, None)
                    if part is None:
                        return
                    if isinstance(part, Answer):
                        answers.append(part)
                        if len(answers) == ask.count:
                            self._tell(line(ask.role, answers, counts))
                    yield part
            except GatewayError as error:
                self._tell(f"{ask.role}: refused: {error}")
                raise


def line(role: str, answers: Sequence[Answer], counts: Mapping[Counted, int]) -> str:
    """Such as `solver: 40 tokens heard, 30 of them known, 12 sampled; 1 echoed`."""
    heard, known = answers[0].prompt_tokens, answers[0].cached_tokens
    sampled = sum(answer.completion_tokens for answer in answers)
    told = [f"{counts[event]} {event.value.replace('_', ' ')}" for event in _TOLD if counts[event]]
    heard_and_said = f"{heard} tokens heard, {known} of them known, {sampled} sampled"
    return f"{role}: {'; '.join((heard_and_said, *told))}"


def summary(session: EpisodeSession, roles: Mapping[str, Role]) -> str:
    """A line for each role that learns, and one for what was counted."""
    scored = session.scored(0.0)
    lines = ["would have been trained:"]
    for role in roles.values():
        rows = forest_of(role.name, [one for one in scored if one.conversation.role.name == role.name]).rows
        if role.frozen:
            lines.append(f"  {role.name}: nothing, its policy is frozen")
            continue
        tokens, sampled = sum(len(row.token_ids) for row in rows), sum(len(row.logprobs) for row in rows)
        lines.append(f"  {role.name}: {len(rows)} rows of {tokens} tokens, {sampled} of them sampled")
    counts = session.counts
    lines.append("  " + ", ".join(f"{counts[event]} {event.value.replace('_', ' ')}" for event in Counted))
    return "\n".join(lines)
