"""Workflows whose episodes are forests, drawn at random: conversations that branch, are compacted, ask sub-agents, and
are scored or not.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from trimtab.fabric.wire.spans import model_span
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.policy.sampler import Completion, Listener, PolicySampler
from trimtab.rollout.workflows.team import Assignment, Conversation, Episode, ScoredConversation, Team


@dataclass
class Sampled:
    """Every token that was ever sampled has a number of its own, so that each can be found again."""

    version: int = 0
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1000))
    by_turn: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By request."""


class NumberedSampler(PolicySampler):
    """Says tokens that nobody said before. Weights may change in the midst of a turn."""

    def __init__(self, sampled: Sampled, *, seed: int = 0) -> None:
        self._sampled = sampled
        self._chance = random.Random(seed)

    async def complete(
        self,
        prompt: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        deadline_s: float,
        listener: Listener | None = None,
    ) -> Completion:
        length = self._chance.randrange(1, 5)
        tokens = tuple(next(self._sampled.numbers) for _ in range(length))
        first = self._chance.randrange(length + 1)
        version = self._sampled.version
        runs = [(first, version), (length - first, version + 1)]
        self._sampled.version += first < length
        self._sampled.by_turn[request_id] = tokens
        return Completion(
            token_ids=tokens,
            logprobs=tuple(-token / 1e6 for token in tokens),
            spans=tuple(model_span(count, version=own) for count, own in runs if count),
            finish="stop",
        )


class RandomForest:
    """Grows conversations for each role by chance, and scores some of them; remembers what it scored."""

    def __init__(self, roles: Sequence[str], *, seed: int, steps: int, reward_turns: bool = False) -> None:
        self._roles = roles
        self._chance = random.Random(seed)
        self._steps = steps
        self._reward_turns = reward_turns
        self.scored: list[tuple[ScoredConversation, ...]] = []

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        scored: list[ScoredConversation] = []
        for role in self._roles:
            grown = await self._grow(role, team)
            for number, conversation in enumerate(grown):
                # The later of two that share their words has some of its own, or it would have nothing to teach.
                said = {turn for one in scored for turn in one.conversation.spoken}
                if self._chance.random() < 0.7 and not said.issuperset(conversation.spoken):
                    parts = {"length": float(len(conversation.token_ids)), "number": float(number)}
                    scored.append(ScoredConversation(conversation, self._chance.random(), reward_parts=parts))
        self._chance.shuffle(scored)
        scored = _teaching(scored)
        self.scored.append(tuple(scored))
        return Episode(tuple(scored))

    async def _grow(self, role: str, team: Team) -> list[Conversation]:
        grown: list[Conversation] = []
        for _ in range(self._chance.randrange(self._steps)):
            kind = self._chance.choice(("begin", "branch", "compact", "go on")) if grown else "begin"
            before = self._chance.choice(grown) if grown else None
            if kind == "begin" or before is None:
                conversation = team.begin(role)
                conversation.hear("ab")
                grown.append(conversation)
            elif kind == "branch":
                conversation = before.fork()
                grown.append(conversation)
            elif kind == "compact":
                conversation = team.begin(role)
                conversation.hear("so far: ")
                conversation.recall(self._chance.choice(before.spoken))
                grown.append(conversation)
            else:
                conversation = before
            conversation.hear("xy"[: self._chance.randrange(1, 3)])
            await conversation.speak()
            if self._reward_turns:
                conversation.reward_turn(float(conversation.spoken[-1].number))
        return grown


def _teaching(scored: list[ScoredConversation]) -> list[ScoredConversation]:
    """Without those that say nothing of their own after the ones before them."""
    kept: list[ScoredConversation] = []
    said: set[object] = set()
    for one in scored:
        if not said.issuperset(one.conversation.spoken):
            kept.append(one)
            said.update(one.conversation.spoken)
    return kept
