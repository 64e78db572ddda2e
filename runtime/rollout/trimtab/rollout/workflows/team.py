"""What a workflow works with: roles that speak, conversations that remember every token, episodes with rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trimtab.fabric.wire.spans import Producer, Span, merged
from trimtab.fabric.wire.trajectory import Finish
from trimtab.rollout.engines.client import SamplingSettings
from trimtab.rollout.sampler import PolicySampler
from trimtab.rollout.seeds import derived_seed


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back, without the special tokens that a chat template would add."""

    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]


class WorkflowError(RuntimeError):
    """The workflow asked for something that does not exist."""


@dataclass
class Conversation:
    """The tokens of one role in one episode, in order, each with its producer."""

    role: Role
    seed: int
    request_id: str
    deadline_s: float
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    turns: int = 0
    finish: Finish = Finish.STOP

    def hear(self, text: str) -> None:
        """Append words that the policy did not write: the prompt at first, the environment's answers later."""
        ids = self.role.tokenizer.encode(text)
        if ids:
            self.token_ids += ids
            self.spans.append(Span(len(ids), Producer.ENVIRONMENT if self.turns else Producer.PROMPT))

    async def speak(self) -> str:
        """Let the policy answer, and return its words."""
        settings = SamplingSettings(
            max_new_tokens=self.role.sampling.max_new_tokens,
            temperature=self.role.sampling.temperature,
            top_p=self.role.sampling.top_p,
            top_k=self.role.sampling.top_k,
            seed=derived_seed(self.seed, self.role.name, self.turns),
        )
        completion = await self.role.sampler.complete(
            self.token_ids, settings, request_id=f"{self.request_id}.{self.turns}", deadline_s=self.deadline_s
        )
        self.turns += 1
        self.token_ids += completion.token_ids
        self.logprobs += completion.logprobs
        self.spans += completion.spans
        self.finish = Finish(completion.finish)
        return self.role.tokenizer.decode(list(completion.token_ids))

    def merged_spans(self) -> tuple[Span, ...]:
        return merged(self.spans)


@dataclass(frozen=True)
class Role:
    """A policy in a part of the workflow."""

    name: str
    policy: str
    tokenizer: Tokenizer
    sampler: PolicySampler
    sampling: SamplingSettings


@dataclass(frozen=True)
class ScoredConversation:
    conversation: Conversation
    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Episode:
    """What an episode brought: conversations with the rewards their policies learn from."""

    scored: tuple[ScoredConversation, ...]


@dataclass(frozen=True)
class Assignment:
    """What the workflow is asked to do: one sample of one prompt."""

    prompt: Mapping[str, Any]
    seed: int
    request_id: str
    deadline_s: float


class Team:
    """The roles of the job, for one episode."""

    def __init__(self, roles: Mapping[str, Role], assignment: Assignment) -> None:
        self._roles = roles
        self._assignment = assignment

    def begin(self, role: str | None = None) -> Conversation:
        """A new conversation of a role; without a name, of the only one there is."""
        if role is None and len(self._roles) == 1:
            chosen = next(iter(self._roles.values()))
        elif role is not None and role in self._roles:
            chosen = self._roles[role]
        else:
            raise WorkflowError(f"no role {role!r}: workflow.roles has {', '.join(sorted(self._roles))}")
        assignment = self._assignment
        return Conversation(
            role=chosen,
            seed=assignment.seed,
            request_id=f"{assignment.request_id}.{chosen.name}",
            deadline_s=assignment.deadline_s,
        )


class Workflow(Protocol):
    """The class named by workflow.entrypoint, made once per worker with workflow.args."""

    async def run(self, assignment: Assignment, team: Team) -> Episode: ...
