"""One episode as agents see it: they ask for answers, and every token that is sampled for them is in one of the
episode's conversations, where its policy learns from it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from trimtab.fabric.wire.spans import model_versions
from trimtab.fabric.wire.trajectory import MAX_PARTS
from trimtab.rollout.engines.contract import EngineError, EngineRefused, EngineTimeout, SamplingSettings
from trimtab.rollout.gateway.budget import Budget
from trimtab.rollout.gateway.exchange import (
    Answer,
    Ask,
    BudgetSpent,
    GatewayError,
    Piece,
    Refused,
    Said,
    Unavailable,
    UnknownRole,
)
from trimtab.rollout.gateway.lineage import Sampled
from trimtab.rollout.gateway.role_lineages import Place, RoleLineages
from trimtab.rollout.gateway.schema import check_schema, violation
from trimtab.rollout.gateway.shown import Arrivals, Shown
from trimtab.rollout.gateway.tally import Counted, GatewayMetrics, Tally
from trimtab.rollout.gateway.wishes import Drawing, drawing
from trimtab.rollout.policy.sampler import Listener
from trimtab.rollout.workflows.conversation import Conversation, Turn
from trimtab.rollout.workflows.errors import NoRoom, first_cause
from trimtab.rollout.workflows.team import ScoredConversation, Team

_CANCEL_S = 10.0
"""For a request that nobody waits for to be given up."""


class EpisodeSession:
    """Implements exchange.Session for one episode."""

    def __init__(self, team: Team, *, budget: Budget, metrics: GatewayMetrics, keep_thoughts: bool = False) -> None:
        """`keep_thoughts` leaves thoughts in the context of later turns also where the chat template drops them:
        fewer rows, but the policy reads what it would not read where it is served.
        """
        self._team = team
        self._budget = budget
        self._tally = Tally(metrics)
        self._keep_thoughts = keep_thoughts
        self._roles: dict[str, RoleLineages] = {}
        self._call_numbers = itertools.count(1)
        self._closed = False

    async def ask(self, ask: Ask) -> tuple[Answer, ...]:
        return await self._spoken(ask, None)

    async def stream(self, ask: Ask) -> AsyncIterator[Piece | Answer]:
        """Pieces come as tokens are sampled. Who closes the stream gives up what was asked.

        An answer that is to follow a schema is shown when it is known to: what an agent was shown is not refused.
        """
        arrivals = Arrivals()
        speaking = asyncio.create_task(self._spoken(ask, arrivals), name="streamed answers")
        speaking.add_done_callback(arrivals.no_more)
        try:
            while not speaking.done():
                await arrivals.wait()
                if ask.schema is None:
                    for piece in arrivals.taken():
                        yield piece
            answers = speaking.result()
            for piece in arrivals.taken():
                yield piece
            for answer in answers:
                yield answer
        finally:
            speaking.cancel()  # of no effect on what is done
            await asyncio.wait({speaking}, timeout=_CANCEL_S)
            if speaking.done() and not speaking.cancelled():
                speaking.exception()  # whoever left does not want to know

    def close(self) -> None:
        """Nothing is answered from now on. What is under way comes to its end."""
        self._closed = True

    @property
    def counts(self) -> Tally:
        return self._tally

    def scored(
        self, reward: float, *, reward_parts: Mapping[str, float] | None = None
    ) -> tuple[ScoredConversation, ...]:
        """All that policies that learn have said, with one reward for all; a part for each thing that was counted.

        An episode may have so many rows of a role and no more: what was said beyond is counted, and not trained.
        """
        chosen: list[Conversation] = []
        left_out = 0
        for lineages in self._roles.values():
            if lineages.role.frozen:
                continue
            said = list(lineages.conversations)
            chosen += said[:MAX_PARTS]
            kept = {turn for conversation in said[:MAX_PARTS] for turn in conversation.spoken}
            lost = {turn for conversation in said[MAX_PARTS:] for turn in conversation.spoken} - kept
            left_out += sum(len(turn.token_ids) for turn in lost)
        self._tally.count(Counted.LEFT_OUT, left_out - self._tally[Counted.LEFT_OUT])
        parts = {**self._tally.parts(), **(reward_parts or {})}
        return tuple(ScoredConversation(conversation, reward, reward_parts=parts) for conversation in chosen)

    async def _spoken(self, ask: Ask, arrivals: Arrivals | None) -> tuple[Answer, ...]:
        if self._closed:
            raise Unavailable("the episode is over")
        lineages = self._lineages(ask.role)
        drawn = drawing(lineages.role, ask)
        if ask.schema is not None:
            check_schema(ask.schema)
        place = lineages.place(ask)
        room = self._budget.reserve(turns=ask.count, tokens_each=drawn.sampling.max_new_tokens)
        self._tally.count(Counted.OVERRIDDEN, len(drawn.overridden))
        sampled: list[int | None] = [None] * ask.count
        tasks: list[asyncio.Task[Answer]] = []
        try:
            async with asyncio.timeout(self._budget.time_left()), asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        self._one(lineages, place, ask, drawn, arrivals, index=index, room=room, sampled=sampled)
                    )
                    for index in range(ask.count)
                ]
        except ExceptionGroup as errors:
            refusals = errors.subgroup(GatewayError)
            if refusals is None:
                raise
            raise first_cause(refusals) from errors
        except TimeoutError:
            raise self._budget.out_of_time() from None
        finally:
            # Here and not in the tasks: one that is cancelled before it began does nothing at all.
            for each in sampled:
                self._budget.settle(reserved=room, sampled=each)
        answers = tuple(task.result() for task in tasks)
        self._check(ask, answers)
        return answers

    def _lineages(self, role: str) -> RoleLineages:
        if role not in self._team.roles:
            there_are = ", ".join(sorted(self._team.roles))
            raise UnknownRole(f"no role {role!r:.80}: the model's name is a role of the job; there are {there_are}")
        if role not in self._roles:
            self._roles[role] = RoleLineages(
                self._team.roles[role], self._team, self._tally, keep_thoughts=self._keep_thoughts
            )
        return self._roles[role]

    async def _one(
        self,
        lineages: RoleLineages,
        place: Place,
        ask: Ask,
        drawn: Drawing,
        arrivals: Arrivals | None,
        *,
        index: int,
        room: int,
        sampled: list[int | None],
    ) -> Answer:
        """Notes in `sampled`, under its index, how many tokens it had, or the agent was shown before it broke off."""
        sampling = replace(drawn.sampling, max_new_tokens=room)
        seed = None if drawn.seed is None else drawn.seed + index
        known = place.known_tokens
        shown = Shown(lineages.role.tokenizer, place, ask, index=index, new_call_id=self._new_call_id)

        def listen(token_ids: Sequence[int]) -> None:
            assert arrivals is not None
            arrivals.add(shown.hear(token_ids))
            sampled[index] = shown.tokens

        with lineages.conversation(place) as conversation:
            listener = None if arrivals is None else listen
            turn = await _turn(conversation, place, sampling=sampling, seed=seed, listener=listener)
            sampled[index] = len(turn.token_ids)
            lineages.spoke(conversation)
        pieces = shown.end(turn)
        if arrivals is not None:
            arrivals.add(pieces)
        said = shown.said
        place.record(said, shown.written, Sampled(turn, conversation))
        versions = model_versions(turn.completion.spans)
        return Answer(
            said=said,
            finish=_finish(turn, said),
            prompt_tokens=known + len(place.heard),
            completion_tokens=len(turn.token_ids),
            cached_tokens=known,
            version=None if versions is None else versions[1],
        )

    def _check(self, ask: Ask, answers: Sequence[Answer]) -> None:
        if ask.schema is None:
            return
        wrong = [violation(answer.said.text, ask.schema) for answer in answers if not answer.said.calls]
        reasons = [reason for reason in wrong if reason is not None]
        self._tally.count(Counted.OFF_SCHEMA, len(reasons))
        if reasons:
            raise Refused(f"schema: the policy wrote something else: {reasons[0]}")

    def _new_call_id(self) -> str:
        """Of nine letters and digits, which is what Mistral's templates insist on."""
        return f"call{next(self._call_numbers):05d}"


async def _turn(
    conversation: Conversation,
    place: Place,
    *,
    sampling: SamplingSettings,
    seed: int | None,
    listener: Listener | None,
) -> Turn:
    try:
        return await conversation.speak_after(place.heard, sampling=sampling, seed=seed, listener=listener)
    except NoRoom as error:
        raise Refused(f"messages: no room for an answer: {error}") from error
    except EngineTimeout as error:
        raise BudgetSpent(f"the episode's time is over: {error}") from error
    except EngineRefused as error:
        raise Refused(f"messages: the engine refuses them: {error}") from error
    except EngineError as error:
        raise Unavailable(str(error)) from error


def _finish(turn: Turn, said: Said) -> Literal["stop", "length", "tool_calls"]:
    return "tool_calls" if said.calls else turn.completion.finish
