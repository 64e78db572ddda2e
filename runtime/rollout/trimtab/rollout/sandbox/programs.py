"""What a program must be to be run, and what its jail may say about it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.rollout.sandbox import frames
from trimtab.rollout.sandbox.contract import End, Ended, Program, ProgramLimits, SandboxFailed, Usage

_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 2048
_MAX_COMMAND_BYTES = 1 << 20
_MAX_WORD_BYTES = 1 << 17
"""Of a command's words the kernel takes none that is longer."""
_MAX_FILES = 4096


def bounded(program: Program, *, within: ProgramLimits) -> Program:
    """The program with no limit that is wider than the sandbox's own."""
    limits = {
        limit.name: min(getattr(program.limits, limit.name), getattr(within, limit.name))
        for limit in dataclasses.fields(ProgramLimits)
    }
    return dataclasses.replace(program, limits=ProgramLimits(**limits))


def check(program: Program) -> None:
    """Raises SandboxFailed with the field that is wrong."""
    words = [word.encode(errors="surrogateescape") for word in program.command]
    if not words or not words[0]:
        raise SandboxFailed("command: it is empty")
    if any(b"\0" in word for word in words):
        raise SandboxFailed("command: a word of it has a null byte")
    if sum(map(len, words)) > _MAX_COMMAND_BYTES or max(map(len, words)) >= _MAX_WORD_BYTES:
        raise SandboxFailed(
            f"command: it is longer than {_MAX_COMMAND_BYTES} bytes, or a word of it than {_MAX_WORD_BYTES}: use a file"
        )
    for field, names in (("files", tuple(program.files)), ("collect", program.collect)):
        if len(names) > _MAX_FILES:
            raise SandboxFailed(f"{field}: {len(names)} are more than {_MAX_FILES}")
        for name in names:
            why = _unusable(name)
            if why:
                raise SandboxFailed(f"{field}: {name[:80]!r} {why}")
    for limit in dataclasses.fields(ProgramLimits):
        asked = getattr(program.limits, limit.name)
        if not 0 < asked < math.inf:
            raise SandboxFailed(f"limits.{limit.name}: {asked:g} is no limit: use a number above 0")
    size = len(program.stdin) + sum(map(len, program.files.values()))
    if size > program.limits.disk_bytes:
        raise SandboxFailed(
            f"files: with stdin they are {size} bytes, and limits.disk_bytes is {program.limits.disk_bytes}"
        )


def request(program: Program) -> bytes:
    """What its jail is told."""
    about = {
        "command": program.command,
        "files": list(program.files),
        "collect": program.collect,
        **dataclasses.asdict(program.limits),
    }
    return frames.packed(about, [program.stdin, *program.files.values()])


def parsed(about: Mapping[str, Any], blobs: Sequence[bytes]) -> Program:
    """What `request` packed. Raises SandboxFailed."""
    try:
        command, names, collect = (_texts(about[field]) for field in ("command", "files", "collect"))
        limits = ProgramLimits(
            wall_s=float(about["wall_s"]),
            cpu_s=float(about["cpu_s"]),
            memory_bytes=int(about["memory_bytes"]),
            processes=int(about["processes"]),
            disk_bytes=int(about["disk_bytes"]),
            output_bytes=int(about["output_bytes"]),
        )
        files = dict(zip(names, blobs[1:], strict=True))
        return Program(command=command, files=files, stdin=blobs[0], collect=collect, limits=limits)
    except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
        raise SandboxFailed(f"no program can be read of this: {type(error).__name__}") from None


def report(program: Program, outcome: Ended) -> bytes:
    """As a jail tells it."""
    about = {
        "end": outcome.end,
        "code": outcome.exit_code,
        "collected": [place for place, name in enumerate(program.collect) if name in outcome.files],
        **dataclasses.asdict(outcome.usage),
    }
    found = [outcome.files[name] for name in program.collect if name in outcome.files]
    return frames.packed(about, [outcome.stdout, outcome.stderr, *found])


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TypeError
    return tuple(value)


def ended(program: Program, told: Mapping[str, Any], blobs: Sequence[bytes]) -> Ended:
    """What its jail told, if that can be. Raises SandboxFailed."""
    if isinstance(told.get("failed"), str):
        raise SandboxFailed(f"the program was not run: {told['failed'][:500]}")
    try:
        end = End(told["end"])
        code, memory, collected = told["code"], told["peak_memory_bytes"], told["collected"]
        wall_s, cpu_s = float(told["wall_s"]), float(told["cpu_s"])
        names = [program.collect[_place(place)] for place in collected]
    except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
        raise SandboxFailed(f"a jail told what cannot be: {type(error).__name__}") from None
    numbers = (wall_s, cpu_s)
    if (
        type(code) is not int
        or type(memory) is not int
        or not all(math.isfinite(number) and number >= 0 for number in numbers)
        or len(blobs) != len(names) + 2
        or len(blobs[0]) + len(blobs[1]) > program.limits.output_bytes
    ):
        raise SandboxFailed("a jail told what cannot be")
    if end is End.EXITED and code < 0:
        end = End.SIGNALLED
    return Ended(
        end=end,
        exit_code=code,
        stdout=blobs[0],
        stderr=blobs[1],
        files=dict(zip(names, blobs[2:], strict=True)),
        usage=Usage(wall_s=wall_s, cpu_s=cpu_s, peak_memory_bytes=memory),
    )


def _place(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _unusable(name: str) -> str:
    steps = name.split("/")
    if not name or any(step in ("", ".", "..") for step in steps):
        return "is no path below the working folder"
    longest = max(len(step.encode(errors="surrogateescape")) for step in steps)
    whole = len(name.encode(errors="surrogateescape"))
    if "\0" in name or longest > _MAX_NAME_BYTES or whole > _MAX_PATH_BYTES:
        return "is no name that a file can have"
    return ""
