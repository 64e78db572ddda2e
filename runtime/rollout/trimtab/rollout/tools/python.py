"""Runs Python that a model wrote, in the sandbox, and tells what it printed or why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trimtab.rollout.sandbox.contract import End, Ended, Program, ProgramLimits
from trimtab.rollout.tools.tool import DEFAULT_LIMITS, Bench, shortened

_ENDS = {
    End.TIME: "Error: its time was over",
    End.MEMORY: "Error: it took too much memory",
    End.OUTPUT: "Error: it printed too much",
}


class Python:
    """Every use is a program of its own: nothing is kept from one to the next."""

    def __init__(self, limits: ProgramLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits

    async def description(self, bench: Bench, /) -> str:
        return "runs a program in Python and tells what it prints; nothing is kept from one program to the next"

    async def use(self, given: str, bench: Bench, /) -> str:
        program = Program(
            command=("python3", "main.py"), files={"main.py": given.strip().encode()}, limits=self._limits
        )
        return shortened(_told(await bench.sandbox.run(program)))


def limits_of(given: Mapping[str, Any], *, name: str) -> ProgramLimits:
    """From a manifest. Raises ValueError, which names the field."""
    known = {field.name for field in fields(ProgramLimits)}
    for limit, value in given.items():
        if limit not in known:
            raise ValueError(f"{name}.{limit} is unknown; there are {', '.join(sorted(known))}")
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise ValueError(f"{name}.{limit} is {value!r:.80}: a number above 0 is needed")
    return ProgramLimits(**given)


def _told(ended: Ended) -> str:
    printed = ended.stdout.decode(errors="replace").strip()
    errors = ended.stderr.decode(errors="replace").strip()
    if ended.succeeded:
        return printed or "It printed nothing."
    why = _ENDS.get(ended.end, "") or errors or f"Error: it ended with {ended.exit_code}"
    return f"{printed}\n{why}".strip()
