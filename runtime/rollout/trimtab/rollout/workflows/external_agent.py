"""An agent as it is: a command for every episode, which asks the gateway in its model provider's stead."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from trimtab.rollout.agents import landlock
from trimtab.rollout.agents.files import Readable, readable
from trimtab.rollout.agents.folder import agent_folder, make_harmless
from trimtab.rollout.agents.process import AgentFailed, AgentLimits, AgentReach, run_agent
from trimtab.rollout.agents.reward import (
    AgentReward,
    AgentWork,
    RewardEndpoint,
    RewardFailed,
    RewardFunction,
    Rewards,
    RewardTimeout,
)
from trimtab.rollout.gateway.budget import budget_of
from trimtab.rollout.workflows.on_timeout import CHECK_TIMEOUT, OnTimeout
from trimtab.rollout.workflows.team import AgentEndpoint, Assignment, Episode, ScoredConversation, Team

_OURS = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "TRIMTAB_PROMPT_FILE")
_REQUIRED, _BEST_EFFORT = "required", "best-effort"
_EXECUTABLES = os.environ.get("PATH", os.defpath)
# Of the episode's time, for the reward and for what is to be cleared up.
_AFTERWARDS_SHARE = 0.1
_UNKNOWN = math.nan
"""Until the reward is known. No row with it is ever sent."""


_log = structlog.get_logger(__name__)


class ExternalAgent:
    """Runs `command`, with the prompt as JSON on its standard input and in the file $TRIMTAB_PROMPT_FILE.

    It has no variables but PATH, HOME, TMPDIR, LANG, those that lead to the gateway, and `environment`. What it is
    worth says `reward`, a function `module:function`, or `reward_url`; `on_reward_timeout` is what it is worth when
    neither says it in time. An agent that ends with an error, or that never asks a role, is a failed episode.

    It reads what programs need, the code of the job and `readable`, writes in its own folder alone, and connects to the
    gateway alone, unless it has the `network`. It does not run where it cannot be kept to that, unless `containment` is
    best-effort.
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
        on_reward_timeout: str | float = "fail",
        budget: Mapping[str, float] | None = None,
        keep_thoughts: bool = False,
        readable: Sequence[str] = (),
        network: bool = False,
        containment: str = _REQUIRED,
    ) -> None:
        if isinstance(command, str) or not command or not all(isinstance(word, str) for word in command):
            raise ValueError(f"command is {command!r:.200}: a list of words is needed, such as [python, agent.py]")
        self.command = tuple(command)
        self._reward = _reward(reward, reward_url, timeout_s=reward_timeout_s)
        self._on_timeout = OnTimeout.of(on_reward_timeout, name="on_reward_timeout")
        self._environment = _environment(environment or {})
        self._budget = budget_of(budget or {})
        self._keep_thoughts = keep_thoughts
        for name, limit in (("time_limit_s", time_limit_s), ("memory_mib", memory_mib), ("output_kib", output_kib)):
            if limit <= 0:
                raise ValueError(f"{name} is {limit}: it must be more than 0")
        if isinstance(readable, str) or not all(isinstance(path, str) and path.startswith("/") for path in readable):
            raise ValueError(f"readable is {readable!r:.200}: a list of absolute paths is needed, such as [/data]")
        if containment not in (_REQUIRED, _BEST_EFFORT):
            raise ValueError(f"containment is {containment!r:.200}: it is {_REQUIRED} or {_BEST_EFFORT}")
        self._readable = tuple(readable)
        self._network = bool(network)
        self._contained = containment == _REQUIRED
        self._source: Path | None = None
        self._files: Readable | None = None
        if lacking := landlock.missing(landlock.version()):
            _log.error("agents_uncontained", containment=containment, agents_could=list(lacking))
        self._limits = AgentLimits(time_s=time_limit_s, memory_bytes=memory_mib << 20, output_bytes=output_kib << 10)

    def read_from(self, source: Path) -> None:
        """Words of the command that are files of the user's code are found there, and so are modules."""
        self._source = source.resolve()
        self.command = tuple(
            str(self._source / word) if (self._source / word).is_file() else word for word in self.command
        )

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        endpoint = team.endpoint(budget=self._budget, keep_thoughts=self._keep_thoughts)
        async with endpoint as asked, agent_folder() as folder:
            prompt = folder / "prompt.json"
            prompt.write_text(json.dumps(dict(task.prompt)), encoding="utf-8")
            ran = await run_agent(
                self.command,
                environment=self._variables(asked, folder, prompt),
                given=prompt,
                folder=folder,
                reach=self._reach(asked),
                limits=self._within(task.deadline_s),
            )
            await make_harmless(folder)
            spoken = asked.scored(_UNKNOWN)
            if not spoken:
                raise AgentFailed(
                    f"{self.command[0]} ended without asking any role that learns: it must use OPENAI_BASE_URL or "
                    f"ANTHROPIC_BASE_URL of its environment, and the name of a role as its model"
                )
            work = AgentWork(prompt=task.prompt, output=ran.output, errors=ran.errors, folder=folder)
            try:
                return _rewarded(spoken, await self._reward.of(work), parts=self._on_timeout.none)
            except RewardTimeout:
                if self._on_timeout.score is None:
                    raise
                return _rewarded(spoken, self._on_timeout.score, parts={CHECK_TIMEOUT: 1.0})

    def _reach(self, endpoint: AgentEndpoint) -> AgentReach:
        if self._files is None:
            path = self._environment.get("PATH", _EXECUTABLES)
            self._files = readable(self.command, source=self._source, more=self._readable, executables=path)
        ports = None if self._network else [urlsplit(endpoint.url).port or 80]
        return AgentReach(read=self._files, ports=ports, complete=self._contained)

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
            **({} if self._source is None else {"PYTHONPATH": str(self._source)}),
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


def _environment(given: Mapping[str, Any]) -> Mapping[str, str]:
    for name, value in given.items():
        if name in _OURS:
            raise ValueError(f"environment.{name} is set for every episode: leave it out")
        if not isinstance(value, str):
            raise ValueError(f"environment.{name} is a {type(value).__name__}: a text is needed")  # noqa: TRY004
    return dict(given)


def _rewarded(spoken: Sequence[ScoredConversation], rewards: Rewards, *, parts: Mapping[str, float]) -> Episode:
    scored = []
    for one in spoken:
        role = one.conversation.role.name
        if isinstance(rewards, Mapping) and role not in rewards:
            raise RewardFailed(f"the reward names {', '.join(sorted(rewards)) or 'no role'}, and {role} spoke too")
        reward = rewards[role] if isinstance(rewards, Mapping) else rewards
        scored.append(replace(one, reward=reward, reward_parts=parts))
    return Episode(tuple(scored))
