"""A team with a real gateway, whose roles follow scripts: for agents that are run as they are."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from tests.support.gateway.tokenizers import tokenizer_of
from trimtab.fabric.metrics import Metrics
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.gateway.gateway import running_gateway
from trimtab.rollout.gateway.tally import GatewayMetrics
from trimtab.rollout.workflows.rehearsal import Script
from trimtab.rollout.workflows.team import Assignment, Role, Team, Tokenizer

CHAT = tokenizer_of("smollm2")


def lines(*said: str) -> Script:
    """Of a role that chats."""
    return Script(*said, tokenizer=CHAT)


@asynccontextmanager
async def scripted_team(
    task: Assignment, scripts: Mapping[str, Script], *, tokenizer: Tokenizer = CHAT
) -> AsyncIterator[Team]:
    sampling = SamplingSettings(max_new_tokens=1 << 16)
    roles = {
        name: Role(name=name, policy=name, tokenizer=tokenizer, sampler=script, sampling=sampling)
        for name, script in scripts.items()
    }
    metrics = GatewayMetrics(Metrics())
    async with running_gateway(roles=tuple(roles), metrics=metrics, clock=time.monotonic) as gateway:
        yield Team(roles, task, gateway=gateway)
