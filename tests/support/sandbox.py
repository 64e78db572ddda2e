"""Programs for the sandbox, and what became of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from trimtab.rollout.sandbox.contract import Ended, Program, ProgramLimits, Sandbox
from trimtab.rollout.sandbox.layers import LayerName
from trimtab.rollout.sandbox.local import LocalSandbox

# A machine that runs other tests at the same time gives a program a third of itself, or less.
PATIENT = ProgramLimits(wall_s=60, cpu_s=30)


@asynccontextmanager
async def a_sandbox(
    *, concurrency: int = 4, limits: ProgramLimits = PATIENT, without: frozenset[LayerName] = frozenset()
) -> AsyncIterator[Sandbox]:
    async with LocalSandbox(limits=limits, concurrency=concurrency, spare=1, without=without) as sandbox:
        yield sandbox


def python(
    source: str,
    *,
    files: Mapping[str, bytes] | None = None,
    stdin: bytes = b"",
    collect: tuple[str, ...] = (),
    limits: ProgramLimits = PATIENT,
) -> Program:
    return Program(
        command=("python3", "main.py"),
        files={"main.py": source.encode(), **(files or {})},
        stdin=stdin,
        collect=collect,
        limits=limits,
    )


def told(ended: Ended) -> str:
    """For the message of a test that fails."""
    return f"{ended.end}, {ended.exit_code}: {ended.stdout[-2000:]!r} {ended.stderr[-2000:]!r}"
