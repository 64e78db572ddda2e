"""Rewards that tests name by entry point."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from trimtab.rollout.agents.reward import AgentWork


def said_so(work: AgentWork) -> float:
    return float(work.prompt["answer"] in work.output)


async def by_role(work: AgentWork) -> Any:
    return json.loads(work.output)


def from_a_file(work: AgentWork) -> float:
    return float((work.folder / "score").read_text())


def broken(work: AgentWork) -> float:
    raise LookupError("no such thing")


def not_a_number(work: AgentWork) -> float:
    return float("nan")


def one(work: AgentWork) -> float:
    return 1.0


async def never(work: AgentWork) -> float:
    await asyncio.Event().wait()
    return 1.0
