"""Runs a workflow with lines instead of models: to see that it asks, passes on and rewards as it should."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.spans import model_span
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.gateway.budget import BudgetLimits
from trimtab.rollout.gateway.gateway import running_gateway
from trimtab.rollout.gateway.tally import GatewayMetrics
from trimtab.rollout.policy.sampler import Completion, Listener
from trimtab.rollout.sandbox.contract import Sandbox
from trimtab.rollout.workflows.rehearsal_tokenizers import CHARACTERS, CHAT
from trimtab.rollout.workflows.team import (
    AgentEndpoint,
    Assignment,
    Episode,
    Role,
    Team,
    Tokenizer,
    Workflow,
    WorkflowError,
)

__all__ = ["CHARACTERS", "CHAT", "Script", "rehearse"]

_MAX_NEW_TOKENS = 1 << 16
_DEADLINE_S = 60.0


class Script:
    """Says its lines one after the other, each cut at what is allowed and behind a text to stop at, and keeps what it
    was asked. With the tokenizer CHAT, or that of a model, its role chats.
    """

    def __init__(self, *lines: str, tokenizer: Tokenizer = CHARACTERS, version: int = 0) -> None:
        self._lines = list(lines)
        self.tokenizer = tokenizer
        self._version = version
        self.prompts: list[list[int]] = []
        self.asked: list[SamplingSettings] = []
        self.request_ids: list[str] = []

    async def complete(
        self,
        prompt: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        deadline_s: float,
        listener: Listener | None = None,
    ) -> Completion:
        self.prompts.append(list(prompt))
        self.asked.append(settings)
        self.request_ids.append(request_id)
        if not self._lines:
            raise WorkflowError(f"no line left for request {request_id}, which heard {self.heard[-1]!r}")
        whole = self.tokenizer.encode(_until(settings.stop, self._lines.pop(0)))
        said = whole[: settings.max_new_tokens]
        finish: Literal["stop", "length"] = "stop" if len(said) == len(whole) else "length"
        spans = (model_span(len(said), version=self._version),) if said else ()
        return Completion(token_ids=tuple(said), logprobs=(-0.5,) * len(said), spans=spans, finish=finish)

    @property
    def heard(self) -> list[str]:
        """What it was asked, as text."""
        return [self.tokenizer.decode(prompt) for prompt in self.prompts]


async def rehearse(
    workflow: Workflow, prompt: Mapping[str, Any], *, scripts: Mapping[str, Script], sandbox: Sandbox | None = None
) -> Episode:
    """One episode of the workflow, in which each role follows its script. Agents find them behind a real gateway."""
    task = Assignment(prompt=prompt, seed=0, request_id="rehearsal", deadline_s=_DEADLINE_S)
    sampling = SamplingSettings(max_new_tokens=_MAX_NEW_TOKENS)
    roles = {
        name: Role(name=name, policy=name, tokenizer=script.tokenizer, sampler=script, sampling=sampling)
        for name, script in scripts.items()
    }
    return await workflow.run(task, Team(roles, task, gateway=_GatewayWhenAsked(), sandbox=sandbox))


class _GatewayWhenAsked:
    """Listens only where the workflow opens an endpoint."""

    @asynccontextmanager
    async def open(
        self, team: Team, *, role: str | None, budget: BudgetLimits, keep_thoughts: bool
    ) -> AsyncIterator[AgentEndpoint]:
        metrics = GatewayMetrics(Metrics())
        async with (
            running_gateway(roles=tuple(team.roles), metrics=metrics, clock=time.monotonic) as gateway,
            gateway.open(team, role=role, budget=budget, keep_thoughts=keep_thoughts) as endpoint,
        ):
            yield endpoint


def _until(stops: Sequence[str], line: str) -> str:
    """With the first text that stops it."""
    ends = [line.index(stop) + len(stop) for stop in stops if stop in line]
    return line[: min(ends, default=len(line))]
