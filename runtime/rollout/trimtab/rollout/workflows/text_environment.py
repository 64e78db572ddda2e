"""A policy in a world of text: it acts in words, and the environment answers, until the end or a limit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import structlog

from trimtab.fabric.daemon_thread import in_daemon_thread
from trimtab.fabric.plugins import find_class
from trimtab.rollout.workflows.chat_settings import ChatSettings
from trimtab.rollout.workflows.team import Assignment, Episode, Message, ScoredConversation, Team, WorkflowError

Step = tuple[str, float, bool]
"""What the environment says, the reward of the action, and whether this was the end."""

Opening = str | Sequence[Message]
"""What a policy sees first: text, or messages, which a policy without a chat template reads one after the other."""

Result = TypeVar("Result")
_log = structlog.get_logger(__name__)
# An episode that is cancelled has two seconds for clean-up.
_CLOSE_TIMEOUT_S = 1.5


class Environment(Protocol):
    """A class of the user's, made anew for every episode. Its methods may be async; others run in a thread.

    It may have a method `close`, which is called when the episode ends, however it ends.
    """

    def reset(self, prompt: Mapping[str, Any], /) -> Opening | Awaitable[Opening]:
        """Begin with one row of the prompts, and say what the policy sees first."""

    def step(self, action: str, /) -> Step | Awaitable[Step]: ...


class EnvironmentFailed(WorkflowError):
    """The environment raised something, or answered what is no answer."""

    kind = "environment-failed"


class EnvironmentTimeout(WorkflowError):
    """The environment did not answer in time."""

    kind = "environment-timeout"


class TextEnvironment:
    """The reward is the sum of the steps' rewards. An episode that comes to `max_turns` or to `max_tokens` keeps what
    it has got so far, and its finish says which limit it was.
    """

    def __init__(
        self,
        *,
        environment: str,
        environment_args: Mapping[str, Any] | None = None,
        max_turns: int = 10,
        max_tokens: int | None = None,
        step_timeout_s: float = 60.0,
        chat: Mapping[str, Any] | None = None,
    ) -> None:
        self._chat = ChatSettings.of(chat, name="chat")
        self._make = _maker(environment, environment_args or {})
        self._name = environment
        self._max_turns = max_turns
        self._max_tokens = max_tokens
        self._step_timeout_s = step_timeout_s

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        environment = self._make()
        try:
            return await self._play(environment, task, team)
        finally:
            await self._close(environment)

    async def _play(self, environment: Environment, task: Assignment, team: Team) -> Episode:
        conversation = team.begin(max_turns=self._max_turns, max_tokens=self._max_tokens, settings=self._chat)
        opening = await self._call("reset", environment.reset, task.prompt)
        if not conversation.chat and not isinstance(opening, str):
            opening = "\n".join(str(message["content"]) for message in opening)
        conversation.hear(opening)
        total, done = 0.0, False
        while not done and not (conversation.turns and conversation.over):
            action = await conversation.speak()
            answer = await self._call(f"step {conversation.turns}", environment.step, action)
            text, reward, done = self._checked(answer, turn=conversation.turns)
            total += reward
            if not done:
                conversation.hear(text)
        return Episode((ScoredConversation(conversation, reward=total),))

    async def _close(self, environment: Environment) -> None:
        """What the episode came to is known already, and remains what it is."""
        close = getattr(environment, "close", None)
        if close is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._call("close", close)
        except (WorkflowError, TimeoutError) as error:
            _log.warning("environment_not_closed", environment=self._name, error=str(error) or type(error).__name__)

    async def _call(self, what: str, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            async with asyncio.timeout(self._step_timeout_s) as limit:
                if inspect.iscoroutinefunction(method):
                    return await method(*arguments)
                return await in_daemon_thread(lambda: method(*arguments), name=f"{self._name} {what}")
        except WorkflowError:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                raise EnvironmentTimeout(
                    f"{what} of {self._name} took over {self._step_timeout_s:g} s: see step_timeout_s"
                ) from None
            raise EnvironmentFailed(f"{what} of {self._name}: {type(error).__name__}: {error}") from error

    def _checked(self, answer: Any, *, turn: int) -> Step:
        try:
            text, reward, done = answer
            return str(text), float(reward), bool(done)
        except (TypeError, ValueError):
            raise EnvironmentFailed(
                f"step {turn} of {self._name} answered {answer!r:.200}: return (text, reward, done)"
            ) from None


def _maker(environment: str, arguments: Mapping[str, Any]) -> Callable[[], Environment]:
    """Whatever is wrong with the class or its arguments is found here, once, and not in every episode."""
    found = find_class(environment, field="environment")
    try:
        inspect.signature(found).bind(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"environment {environment!r} cannot be made: {error}") from error
    missing = [method for method in ("reset", "step") if not hasattr(found, method)]
    if missing:
        raise ValueError(f"environment {environment!r} has no {' and no '.join(missing)}")

    def make() -> Environment:
        made: Environment = found(**arguments)
        return made

    return make
