"""What a program must be to be run, and what its cell may say about it."""

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


def check(program: Program, *, within: ProgramLimits) -> None:
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
        asked, most = getattr(program.limits, limit.name), getattr(within, limit.name)
        if not 0 < asked <= most:
            raise SandboxFailed(
                f"limits.{limit.name}: {asked:g} is not between 0 and the {most:g} that workflow.sandbox allows"
            )
    size = len(program.stdin) + sum(map(len, program.files.values()))
    if size > program.limits.disk_bytes:
        raise SandboxFailed(
            f"files: with stdin they are {size} bytes, and limits.disk_bytes is {program.limits.disk_bytes}"
        )


def request(program: Program) -> bytes:
    """What its cell is told."""
    about = {
        "command": program.command,
        "files": list(program.files),
        "collect": program.collect,
        **dataclasses.asdict(program.limits),
    }
    return frames.packed(about, [program.stdin, *program.files.values()])


def ended(program: Program, report: Mapping[str, Any], blobs: Sequence[bytes]) -> Ended:
    """What its cell told, if that can be. Raises SandboxFailed."""
    if isinstance(report.get("failed"), str):
        raise SandboxFailed(f"the program was not run: {report['failed'][:500]}")
    try:
        end = End(report["end"])
        code, memory, collected = report["code"], report["peak_memory_bytes"], report["collected"]
        wall_s, cpu_s = float(report["wall_s"]), float(report["cpu_s"])
        names = [program.collect[place] for place in collected]
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise SandboxFailed(f"a cell told what cannot be: {type(error).__name__}") from None
    numbers = (wall_s, cpu_s)
    if (
        type(code) is not int
        or type(memory) is not int
        or not all(math.isfinite(number) and number >= 0 for number in numbers)
        or len(blobs) != len(names) + 2
        or len(blobs[0]) + len(blobs[1]) > program.limits.output_bytes
    ):
        raise SandboxFailed("a cell told what cannot be")
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


def _unusable(name: str) -> str:
    steps = name.split("/")
    if not name or any(step in ("", ".", "..") for step in steps):
        return "is no path below the working folder"
    encoded = [step.encode(errors="surrogateescape") for step in steps]
    if "\0" in name or max(map(len, encoded)) > _MAX_NAME_BYTES or sum(map(len, encoded)) > _MAX_PATH_BYTES:
        return "is no name that a file can have"
    return ""
