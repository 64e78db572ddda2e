"""An agent as it is: a command for every episode, which asks the gateway in its model provider's stead."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from trimtab.rollout.workflows.agent_process import AgentFailed, AgentLimits, run_agent
from trimtab.rollout.workflows.agent_reward import (
    AgentReward,
    AgentWork,
    RewardEndpoint,
    RewardFailed,
    RewardFunction,
    Rewards,
)
from trimtab.rollout.workflows.team import AgentEndpoint, Assignment, BudgetLimits, Episode, ScoredConversation, Team

_OURS = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "TRIMTAB_PROMPT_FILE")
_EXECUTABLES = os.environ.get("PATH", os.defpath)
# Of the episode's time, for the reward and for what is to be cleared up.
_AFTERWARDS_SHARE = 0.1
_UNKNOWN = math.nan
"""Until the reward is known. No row with it is ever sent."""


class ExternalAgent:
    """Runs `command`, with the prompt as JSON on its standard input and in the file $TRIMTAB_PROMPT_FILE.

    It has no variables but PATH, HOME, TMPDIR, LANG, those that lead to the gateway, and `environment`. What it is
    worth says `reward`, a function `module:function`, or `reward_url`. An agent that ends with an error, or that never
    asks a role, is a failed episode.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        reward: str | None = None,
        reward_url: str | None = None,
        environment: Mapping[str, str] | None = None,
        time_limit_s: float = 600.0,
        memory_mib: int = 4096,
        output_kib: int = 256,
        reward_timeout_s: float = 60.0,
        budget: Mapping[str, float] | None = None,
        keep_thoughts: bool = False,
    ) -> None:
        if isinstance(command, str) or not command or not all(isinstance(word, str) for word in command):
            raise ValueError(f"command is {command!r:.200}: a list of words is needed, such as [python, agent.py]")
        self._command = tuple(command)
        self._reward = _reward(reward, reward_url, timeout_s=reward_timeout_s)
        self._environment = _environment(environment or {})
        self._budget = _budget(budget or {})
        self._keep_thoughts = keep_thoughts
        for name, limit in (("time_limit_s", time_limit_s), ("memory_mib", memory_mib), ("output_kib", output_kib)):
            if limit <= 0:
                raise ValueError(f"{name} is {limit}: it must be more than 0")
        self._limits = AgentLimits(time_s=time_limit_s, memory_bytes=memory_mib << 20, output_bytes=output_kib << 10)

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        endpoint = team.endpoint(budget=self._budget, keep_thoughts=self._keep_thoughts)
        async with endpoint as asked, _scratch() as folder:
            prompt = folder / "prompt.json"
            prompt.write_text(json.dumps(dict(task.prompt)), encoding="utf-8")
            ran = await run_agent(
                self._command,
                environment=self._variables(asked, folder, prompt),
                given=prompt,
                folder=folder,
                limits=self._within(task.deadline_s),
            )
            spoken = asked.scored(_UNKNOWN)
            if not spoken:
                raise AgentFailed(
                    f"{self._command[0]} ended without asking any role that learns: it must use OPENAI_BASE_URL or "
                    f"ANTHROPIC_BASE_URL of its environment, and the name of a role as its model"
                )
            work = AgentWork(prompt=task.prompt, output=ran.output, errors=ran.errors, folder=folder)
            return _rewarded(spoken, await self._reward.of(work))

    def _within(self, deadline_s: float) -> AgentLimits:
        time_s = min(self._limits.time_s, deadline_s * (1 - _AFTERWARDS_SHARE))
        return AgentLimits(
            time_s=time_s, memory_bytes=self._limits.memory_bytes, output_bytes=self._limits.output_bytes
        )

    def _variables(self, endpoint: AgentEndpoint, folder: Path, prompt: Path) -> Mapping[str, str]:
        """Made from nothing: the pod's own variables hold its credentials."""
        return {
            "PATH": _EXECUTABLES,
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "LANG": "C.UTF-8",
            **self._environment,
            "OPENAI_BASE_URL": endpoint.openai_url,
            "OPENAI_API_KEY": endpoint.key,
            "ANTHROPIC_BASE_URL": endpoint.url,
            "ANTHROPIC_API_KEY": endpoint.key,
            "TRIMTAB_PROMPT_FILE": str(prompt),
        }


def _reward(function: str | None, url: str | None, *, timeout_s: float) -> AgentReward:
    if function is not None and url is None:
        return RewardFunction(function, timeout_s=timeout_s)
    if url is not None and function is None:
        return RewardEndpoint(url, timeout_s=timeout_s)
    raise ValueError("give either reward, the function `module:function`, or reward_url")


def _budget(given: Mapping[str, float]) -> BudgetLimits:
    known = [each.name for each in fields(BudgetLimits)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"budget.{unknown[0]} is not known: there are {', '.join(known)}")
    return BudgetLimits(**given)  # type: ignore[arg-type]


def _environment(given: Mapping[str, Any]) -> Mapping[str, str]:
    for name, value in given.items():
        if name in _OURS:
            raise ValueError(f"environment.{name} is set for every episode: leave it out")
        if not isinstance(value, str):
            raise ValueError(f"environment.{name} is a {type(value).__name__}: a text is needed")  # noqa: TRY004
    return dict(given)


def _rewarded(spoken: Sequence[ScoredConversation], rewards: Rewards) -> Episode:
    scored = []
    for one in spoken:
        role = one.conversation.role.name
        if isinstance(rewards, Mapping) and role not in rewards:
            raise RewardFailed(f"the reward names {', '.join(sorted(rewards)) or 'no role'}, and {role} spoke too")
        reward = rewards[role] if isinstance(rewards, Mapping) else rewards
        scored.append(replace(one, reward=reward))
    return Episode(tuple(scored))


@asynccontextmanager
async def _scratch() -> AsyncIterator[Path]:
    """A folder of the episode's own."""
    folder = Path(tempfile.mkdtemp(prefix="agent-"))
    try:
        yield folder
    finally:
        # An agent can write more than is removed in a moment.
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
