"""Mathematical equality by math-verify, in child processes that are killed when sympy does not come to an end."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import sys
from asyncio.subprocess import PIPE, Process

from trimtab.rollout.workflows.errors import PromptUnusable, WorkflowError

_CHILD = "trimtab.rollout.workflows.mathematics_child"
_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 10.0


class VerificationTimeout(WorkflowError):
    """It is unknown whether the answer is right: comparing it takes too long."""

    kind = "verification-timeout"


class VerificationFailed(WorkflowError):
    """It is unknown whether the answer is right: comparing it went wrong."""

    kind = "verification-failed"


class Mathematics:
    """Scores answers 1 or 0 with at most `processes` children, each kept for the next answer until it fails."""

    def __init__(self, *, processes: int = 2, timeout_s: float = 10.0) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ModuleNotFoundError("check: math needs the package math-verify; it comes with trimtab[rollout]")
        self._timeout_s = timeout_s
        self._free_processes = asyncio.Semaphore(processes)
        self._idle: list[Process] = []

    async def score(self, answer: str, expected: str) -> float:
        question = json.dumps({"answer": answer, "expected": expected, "seconds": self._timeout_s})
        async with self._free_processes:
            child = self._idle.pop() if self._idle else await _started()
            line = b""
            try:
                async with asyncio.timeout(self._timeout_s):
                    line = await _asked(child, question)
            except TimeoutError:
                raise VerificationTimeout(
                    f"comparing with {expected[:200]!r} took over {self._timeout_s:g} s: {answer[-200:]!r}"
                ) from None
            finally:
                # Without its answer a child is of no more use, also when the episode was cancelled: what it has still
                # to say would be taken for the answer to the next question.
                if line:
                    self._idle.append(child)
                else:
                    await _end(child)
        if not line:
            raise VerificationFailed(f"the child died of comparing with {expected[:200]!r}: {answer[-200:]!r}")
        verdict = json.loads(line)
        if "unusable" in verdict:
            raise PromptUnusable(f"check: math: {verdict['unusable']}: {expected[:200]!r}")
        if "error" in verdict:
            raise VerificationFailed(f"comparing with {expected[:200]!r}: {verdict['error']}")
        return float(verdict["correct"])

    async def close(self) -> None:
        """End the children that are idle. They end by themselves when this process does."""
        while self._idle:
            await _end(self._idle.pop())


async def _started() -> Process:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", _CHILD),
        stdin=PIPE,
        stdout=PIPE,
        start_new_session=True,  # an interrupt from the terminal is the worker's: it drains, and needs its children
    )
    assert child.stdout is not None
    ready = b""
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            ready = await child.stdout.readline()
    except TimeoutError:
        raise VerificationFailed(f"math-verify did not start within {_START_TIMEOUT_S:g} s") from None
    finally:
        if not ready:
            await _end(child)
    if not ready:
        raise VerificationFailed("math-verify does not start; its process has written why to standard error")
    return child


async def _asked(child: Process, question: str) -> bytes:
    """Its answer, empty when it died."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(question.encode() + b"\n")
    with contextlib.suppress(ConnectionError):  # it died before: its answer is empty
        await child.stdin.drain()
    return await child.stdout.readline()


async def _end(child: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_TIMEOUT_S):
            await child.communicate()
