"""What an agent's episode was worth: by a function of the user's, or by an endpoint that is asked."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from trimtab.fabric.daemon_thread import in_daemon_thread
from trimtab.fabric.plugins import find_class
from trimtab.rollout.user_endpoint import check_url, read_body
from trimtab.rollout.workflows.errors import WorkflowError

_MAX_ANSWER_BYTES = 1 << 20
Rewards = float | Mapping[str, float]
"""One for all roles, or each role's own."""


class RewardFailed(WorkflowError):
    """What the episode was worth is unknown: it is no zero."""

    kind = "reward-failed"


class RewardTimeout(RewardFailed):
    """What says what the episode was worth did not say it in time."""


@dataclass(frozen=True, kw_only=True)
class AgentWork:
    """What an agent leaves behind. The folder is gone after the reward."""

    prompt: Mapping[str, Any]
    output: str
    errors: str
    folder: Path


class AgentReward(Protocol):
    async def of(self, work: AgentWork) -> Rewards: ...


class RewardFunction:
    """`module:function`, called with an AgentWork. It may be async; others run in a thread."""

    def __init__(self, entrypoint: str, *, timeout_s: float) -> None:
        self._function = find_class(entrypoint, field="reward")
        if not callable(self._function):
            raise ValueError(f"reward {entrypoint!r} is no function")  # noqa: TRY004
        self._name = entrypoint
        self._timeout_s = timeout_s

    async def of(self, work: AgentWork) -> Rewards:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                if inspect.iscoroutinefunction(self._function):
                    return checked(await self._function(work), name=self._name)
                rewards = await in_daemon_thread(lambda: self._function(work), name=f"reward {self._name}")
                return checked(rewards, name=self._name)
        except WorkflowError:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                raise RewardTimeout(f"{self._name} took over {self._timeout_s:g} s: see reward_timeout_s") from None
            raise RewardFailed(f"{self._name}: {type(error).__name__}: {error}") from error


class RewardEndpoint:
    """POST of `{"prompt", "output", "errors"}`; it answers `{"reward": 1.0}` or `{"reward": {"planner": 1.0, ...}}`."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self._url = check_url(url, name="reward_url")
        self._timeout_s = timeout_s

    async def of(self, work: AgentWork) -> Rewards:
        body = {"prompt": dict(work.prompt), "output": work.output, "errors": work.errors}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._timeout_s)) as client,
                client.post(self._url, json=body) as response,
            ):
                text = await read_body(response, most=_MAX_ANSWER_BYTES)
                if response.status != 200:
                    raise RewardFailed(f"{self._url} answered {response.status}: {text[:500].decode(errors='replace')}")
                answer = json.loads(text)
        except TimeoutError:
            raise RewardTimeout(f"{self._url} took over {self._timeout_s:g} s: see reward_timeout_s") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise RewardFailed(f"{self._url}: {type(error).__name__}: {error}") from None
        if not isinstance(answer, dict) or "reward" not in answer:
            raise RewardFailed(f'{self._url} answered {answer!r:.200}: answer {{"reward": ...}}')
        return checked(answer["reward"], name=self._url)


def checked(rewards: object, *, name: str) -> Rewards:
    """Raises RewardFailed for what is no reward."""
    if isinstance(rewards, Mapping):
        return {str(role): _number(value, name=f"{name}, role {role}") for role, value in rewards.items()}
    return _number(rewards, name=name)


def _number(value: object, *, name: str) -> float:
    # A bool is a number in Python: right is 1, wrong is 0.
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise RewardFailed(f"{name} gave {value!r:.200}: a finite number, or a number for each role, is needed")
    return float(value)
