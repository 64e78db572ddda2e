"""What a user's error says leaves the process without secrets, and never keeps a failure from being told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from trimtab.fabric.logs import REDACTOR
from trimtab.rollout.worker.failures import OTHER_KINDS, EpisodeFailed, FailureTally, failure_of
from trimtab.rollout.workflows.containment import Containment
from trimtab.rollout.workflows.errors import WorkflowError, WorkflowHung
from trimtab.rollout.workflows.source_location import WorkflowSource


def test_secrets_are_taken_out() -> None:
    REDACTOR.register(["f00-bar-secret-value"])
    text = EpisodeFailed("workflow-error", "GET https://me:pw@host failed; token f00-bar-secret-value").text
    assert "f00-bar-secret-value" not in text
    assert "pw@" not in text
    assert "failed" in text


def test_a_secret_at_the_place_of_the_cut_does_not_survive_in_part() -> None:
    REDACTOR.register(["another-long-secret-value"])
    assert "another" not in EpisodeFailed("workflow-error", "x" * 3990 + "another-long-secret-value").text


def test_half_a_character_and_any_length_can_be_told() -> None:
    text = EpisodeFailed("workflow-error", "\udc80" + "é" * 10_000).text
    assert text.encode("utf-8")
    assert len(text) == 4000


def test_kinds_that_somebody_makes_up_do_not_grow_without_end() -> None:
    tally = FailureTally()
    counted = {tally.add(f"kind-{number}") for number in range(1000)}
    assert len(counted) == 101
    assert tally.counts[OTHER_KINDS] == 900
    assert tally.add("kind-0") == "kind-0"


class Sloppy:
    async def run(self) -> float:
        return float(json.loads("{")["reward"])


class Waiting:
    async def run(self) -> None:
        await self._tool()

    async def _tool(self) -> None:
        await asyncio.Event().wait()


def line_of(method: Callable[..., Any], offset: int) -> int:
    return method.__code__.co_firstlineno + offset


async def test_it_is_laid_at_the_line_of_the_users_own_code() -> None:
    """Not at one of the library that it called."""
    workflow = Sloppy()
    with pytest.raises(json.JSONDecodeError) as raised:
        await workflow.run()
    failure = failure_of(raised.value, WorkflowSource(workflow))
    assert failure.where == f"test_failures.py, line {line_of(Sloppy.run, 1)}, in run"
    assert failure.text.startswith("JSONDecodeError: Expecting property name")


def test_what_run_returned_is_laid_at_the_door_of_run() -> None:
    failure = failure_of(WorkflowError("a reward is not a finite number: nan"), WorkflowSource(Sloppy()))
    assert failure.where == f"test_failures.py, line {line_of(Sloppy.run, 0)}, in run"


async def test_of_what_hangs_the_line_is_told_at_which_it_waits() -> None:
    workflow = Waiting()
    with pytest.raises(WorkflowHung, match="not finished within 0.01 s") as raised:
        await Containment().run(workflow.run(), name="episode", timeout_s=0.01)
    failure = failure_of(raised.value, WorkflowSource(workflow))
    assert failure.where == f"test_failures.py, line {line_of(Waiting._tool, 1)}, in _tool"


def test_a_workflow_that_comes_from_nowhere_has_no_line() -> None:
    made = type("Made", (), {})()
    assert failure_of(ValueError("x"), WorkflowSource(made)).where == ""
