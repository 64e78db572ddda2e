"""Code of users ends as a typed error, whatever it does, and what does not end is left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from tests.support.polling import within
from trimtab.fabric.daemon_thread import in_daemon_thread
from trimtab.rollout.workflows.containment import (
    Containment,
    WorkflowCancelled,
    WorkflowExited,
    contained_task,
)
from trimtab.rollout.workflows.errors import WorkflowHung


@pytest.fixture
def containment() -> Containment:
    """So patient that clean-up is waited for on any machine."""
    return Containment(patience_s=600.0)


@pytest.fixture
def impatient() -> Containment:
    """For workflows that do not end when they are told to."""
    return Containment(patience_s=0.05)


@pytest.fixture
async def released() -> AsyncIterator[asyncio.Event]:
    """Lets a stubborn workflow end, so that the test's own loop can."""
    event = asyncio.Event()
    yield event
    event.set()


async def stubborn(released: asyncio.Event) -> str:
    while True:
        try:
            await released.wait()
        except asyncio.CancelledError:
            continue
        return "late"


async def test_what_ends_by_itself_is_passed_on(containment: Containment) -> None:
    async def answer() -> int:
        return 7

    async def fail() -> int:
        raise ZeroDivisionError

    assert await containment.run(answer(), name="a", timeout_s=60.0) == 7
    with pytest.raises(ZeroDivisionError):
        await containment.run(fail(), name="f", timeout_s=60.0)


async def test_a_workflow_that_swallows_its_cancellation_is_left_behind_by_name(
    impatient: Containment, released: asyncio.Event
) -> None:
    with capture_logs() as logs, pytest.raises(WorkflowHung, match="not finished within 0.01 s"):
        await impatient.run(stubborn(released), name="episode t.0", timeout_s=0.01)
    assert [(line["event"], line["task"]) for line in logs] == [("workflow_ignores_cancellation", "episode t.0")]
    (left,) = impatient.left_behind
    released.set()
    await within(left, 5.0)
    assert not impatient.left_behind


async def test_one_that_is_stubborn_does_not_keep_a_worker_from_leaving(
    impatient: Containment, released: asyncio.Event
) -> None:
    run = asyncio.create_task(impatient.run(stubborn(released), name="s", timeout_s=60.0))
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(run, 5.0)
    assert len(impatient.left_behind) == 1


async def test_cleaning_up_takes_its_time_and_is_waited_for(containment: Containment) -> None:
    cleaned = asyncio.Event()

    async def careful() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.set()

    with pytest.raises(WorkflowHung):
        await containment.run(careful(), name="c", timeout_s=0.01)
    assert cleaned.is_set()
    assert not containment.left_behind


async def test_a_cancellation_of_its_own_is_not_taken_for_ours(containment: Containment) -> None:
    async def confused() -> None:
        mine = asyncio.create_task(asyncio.Event().wait())
        mine.cancel()
        await mine

    with pytest.raises(WorkflowCancelled):
        await containment.run(confused(), name="c", timeout_s=60.0)


class OwnBase(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, OwnBase])
async def test_no_exit_gets_through(containment: Containment, error: type[BaseException]) -> None:
    async def leave() -> None:
        raise error

    with pytest.raises(WorkflowExited, match=error.__name__):
        await containment.run(leave(), name="l", timeout_s=60.0)


_PROGRAM = """
import asyncio, sys
from trimtab.rollout.workflows.containment import Containment, WorkflowExited, contained_task

async def tool():
    sys.exit(5)

async def workflow():
    async with asyncio.TaskGroup() as group:
        group.create_task(tool())

async def main():
    asyncio.get_running_loop().set_task_factory(contained_task)
    try:
        await Containment().run(workflow(), name="w", timeout_s=60.0)
    except* WorkflowExited as caught:
        print("caught", caught.exceptions[0])

asyncio.run(main())
"""


def test_an_exit_in_a_task_of_the_workflows_does_not_end_the_process() -> None:
    """In a process of its own: asyncio lets such an exit through the loop itself, and would end the tests."""
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=600)
    assert (ended.returncode, ended.stdout.strip()[:6]) == (0, "caught"), ended.stderr
    assert "SystemExit(5)" in ended.stdout


async def test_tasks_of_our_own_are_as_they_were() -> None:
    async def answer() -> int:
        return 7

    task = contained_task(asyncio.get_running_loop(), answer(), name="ours")
    assert (await task, task.get_name()) == (7, "ours")


async def test_an_exit_in_a_thread_is_told_to_whoever_waits() -> None:
    with pytest.raises(RuntimeError, match=r"step 1 raised SystemExit\(2\)"):
        await within(in_daemon_thread(lambda: sys.exit(2), name="step 1"), 10.0)
