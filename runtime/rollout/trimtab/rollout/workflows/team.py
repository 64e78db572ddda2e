"""What a workflow works with: an assignment, a team of roles that converse, and an episode with their rewards."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from trimtab.rollout.gateway.budget import BudgetLimits
from trimtab.rollout.sandbox.contract import Sandbox, TimedSandbox
from trimtab.rollout.tokenizer import Message, Tokenizer
from trimtab.rollout.workflows.chat_settings import PLAIN, ChatSettings
from trimtab.rollout.workflows.conversation import Conversation, Limits, Role, Turn
from trimtab.rollout.workflows.errors import NoRoom, PromptUnusable, WorkflowError

__all__ = [
    "AgentEndpoint",
    "Assignment",
    "BudgetLimits",
    "ChatSettings",
    "Conversation",
    "Episode",
    "Message",
    "NoRoom",
    "PromptUnusable",
    "Role",
    "ScoredConversation",
    "Team",
    "Tokenizer",
    "Turn",
    "Workflow",
    "WorkflowError",
]

_UNLIMITED = BudgetLimits()
_NAMED_FIRST_S = 1.0
_NAMED_FIRST_SHARE = 0.05


@dataclass(frozen=True)
class ScoredConversation:
    """A conversation and the reward its policy learns from."""

    conversation: Conversation
    reward: float
    turn_rewards: Sequence[float] | None = None
    """What each of its turns earned, in the place of what `reward_turn` said; only policies that learn by turns look at
    it.
    """
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """What the reward is made of, by name: for metrics, filters and selections."""


@dataclass(frozen=True)
class Episode:
    """What an episode brought: any number of scored conversations for each role of the job. A role without any has
    nothing to learn from this episode.
    """

    scored: tuple[ScoredConversation, ...]


@dataclass(frozen=True)
class Assignment:
    """What the workflow is asked to do: one sample of one prompt. `seed` is for all that the workflow draws itself."""

    prompt: Mapping[str, Any]
    seed: int
    request_id: str
    deadline_s: float

    def column(self, name: str) -> Any:
        """A column of the prompt. One that is missing ends all attempts at this prompt."""
        if name not in self.prompt:
            raise PromptUnusable(f"the prompt has no column {name!r}; it has {', '.join(sorted(self.prompt))}")
        return self.prompt[name]


class AgentEndpoint(Protocol):
    """Where an agent asks in its model provider's stead, for one episode."""

    @property
    def url(self) -> str:
        """For Anthropic's libraries."""

    @property
    def openai_url(self) -> str:
        """For OpenAI's."""

    @property
    def key(self) -> str: ...

    @property
    def model(self) -> str:
        """The role to ask for. Raises WorkflowError where there are several and none was named."""

    def scored(self, reward: float, *, reward_parts: Mapping[str, float] | None = None) -> Sequence[ScoredConversation]:
        """All that roles that learn have said, with one reward for all."""


class Gateway(Protocol):
    """The worker's, which knows how to speak with agents."""

    def open(
        self, team: Team, *, role: str | None, budget: BudgetLimits, keep_thoughts: bool
    ) -> AbstractAsyncContextManager[AgentEndpoint]: ...


class Team:
    """The roles of the job, for one episode."""

    def __init__(
        self,
        roles: Mapping[str, Role],
        assignment: Assignment,
        *,
        gateway: Gateway | None = None,
        sandbox: Sandbox | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a `gateway` there are no endpoints, without a `sandbox` nothing is executed."""
        self._roles = roles
        self._assignment = assignment
        self._gateway = gateway
        self._sandbox = None if sandbox is None else TimedSandbox(sandbox)
        self._clock = clock
        self._began = clock()
        # Conversations of one role are numbered, so that no two draw the same random numbers.
        self._branches: dict[str, Iterator[int]] = {name: itertools.count() for name in roles}
        self._turns: dict[str, Iterator[int]] = {name: itertools.count() for name in roles}

    @property
    def roles(self) -> Mapping[str, Role]:
        """By name."""
        return self._roles

    def begin(
        self,
        role: str | None = None,
        *,
        chat: bool | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        settings: ChatSettings = PLAIN,
    ) -> Conversation:
        """A new conversation of a role; without a name, of the only one there is.

        It is a chat if the role's tokenizer has a chat template, unless `chat` says otherwise. `settings` that the
        template would leave out in silence are refused.
        """
        chosen = self.role(role)
        templated = chosen.tokenizer.render is not None
        if chat and not templated:
            raise WorkflowError(f"role {chosen.name}: the tokenizer of policy {chosen.policy} has no chat template")
        chat = templated if chat is None else chat
        why = settings.unusable(chosen.tokenizer, chat=chat)
        if why is not None:
            raise WorkflowError(f"role {chosen.name}, policy {chosen.policy}: chat settings: {why}")
        return Conversation(
            chosen,
            seed=self._assignment.seed,
            request_id=f"{self._assignment.request_id}.{chosen.name}",
            time_left=self._time_left,
            chat=chat,
            settings=settings,
            limits=Limits(turns=max_turns, tokens=max_tokens),
            branches=self._branches[chosen.name],
            numbers=self._turns[chosen.name],
        )

    def endpoint(
        self, role: str | None = None, *, budget: BudgetLimits = _UNLIMITED, keep_thoughts: bool = False
    ) -> AbstractAsyncContextManager[AgentEndpoint]:
        """Where agents that speak OpenAI's or Anthropic's protocol ask the roles of this episode, by their names. Its
        `model` is this role, or the only one there is.

        `keep_thoughts` leaves thoughts in the context of later turns also where the chat template drops them: fewer
        rows, but the policy reads what it would not read where it is served.
        """
        if self._gateway is None:
            raise WorkflowError("there is no gateway here: endpoints are for episodes that a worker runs")
        if role is not None:
            self.role(role)
        return self._gateway.open(self, role=role, budget=budget, keep_thoughts=keep_thoughts)

    @property
    def sandbox(self) -> Sandbox:
        """Where to execute what a model wrote."""
        if self._sandbox is None:
            raise WorkflowError("the job has no sandbox: set workflow.sandbox to {} or to its limits")
        return self._sandbox

    def role(self, name: str | None = None) -> Role:
        """The one of this name; without a name, the only one there is."""
        if name is None and len(self._roles) == 1:
            return next(iter(self._roles.values()))
        if name is not None and name in self._roles:
            return self._roles[name]
        raise WorkflowError(f"no role {name!r}: workflow.roles has {', '.join(sorted(self._roles))}")

    def _time_left(self) -> float:
        """For an answer of the engine's. A little less than the episode has: when an engine is the reason that an
        episode comes to nothing, it is the engine that is named, and not the workflow.
        """
        deadline_s = self._assignment.deadline_s
        ends_at = self._began + deadline_s - min(_NAMED_FIRST_S, deadline_s * _NAMED_FIRST_SHARE)
        return max(0.0, ends_at - self._clock())


class Workflow(Protocol):
    """The class named by workflow.entrypoint, made once per worker with workflow.args.

    It may have `roles`, the names of the roles it needs; a job with others is refused when the worker starts. And it
    may have `read_from`, which is told the folder of workflow.source.
    """

    async def run(self, task: Assignment, team: Team, /) -> Episode: ...
