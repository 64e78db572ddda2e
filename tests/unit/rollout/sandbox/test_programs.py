"""What can be a program, and the way there and back between a worker and its sandbox."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.rollout.sandbox import frames
from trimtab.rollout.sandbox.contract import End, Ended, Program, ProgramLimits, SandboxFailed, Usage
from trimtab.rollout.sandbox.programs import bounded, check, ended, parsed, report, request


def unpacked(frame: bytes) -> tuple[dict[str, Any], list[bytes]]:
    size = frames.header_length(frame[:4])
    header = frames.header(frame[4 : 4 + size])
    rest = frame[4 + size :]
    blobs = []
    for length in frames.lengths(header, most=len(rest)):
        blobs.append(rest[:length])
        rest = rest[length:]
    assert rest == b""
    return header, blobs


@given(
    command=st.lists(st.text(min_size=1), min_size=1, max_size=4),
    files=st.dictionaries(st.text(min_size=1), st.binary(), max_size=4),
    stdin=st.binary(),
    limits=st.builds(ProgramLimits, wall_s=st.floats(0.1, 100), processes=st.integers(1, 100)),
)
def test_a_program_arrives_as_it_was_sent(
    command: list[str], files: dict[str, bytes], stdin: bytes, limits: ProgramLimits
) -> None:
    program = Program(command=tuple(command), files=files, stdin=stdin, collect=tuple(files), limits=limits)
    assert parsed(*unpacked(request(program))) == program
    outcome = Ended(
        end=End.EXITED,
        exit_code=7,
        stdout=stdin[: limits.output_bytes],
        stderr=b"",
        files=files,
        usage=Usage(wall_s=1.0, cpu_s=2.0, peak_memory_bytes=3),
    )
    assert ended(program, *unpacked(report(program, outcome))) == outcome


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_whatever_is_said_is_a_program_or_refused(said: Any) -> None:
    about = json.loads(request(Program(command=("x",)))[4:])
    for field in (*about, "end"):
        try:
            parsed({**about, field: said}, [b""])
        except SandboxFailed:
            continue


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../x", "a/../../x", "a//b", ".", "a/.", "n" * 256, "a\0b", "/".join(["d"] * 2000)]
)
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    for program in (Program(command=("x",), files={name: b""}), Program(command=("x",), collect=(name,))):
        with pytest.raises(SandboxFailed, match="files|collect"):
            check(program)


@pytest.mark.parametrize("command", [(), ("",), ("a\0",), ("x" * (1 << 17),), ("x", *("y" * 1000,) * 2000)])
def test_a_command_that_no_kernel_takes_is_refused(command: tuple[str, ...]) -> None:
    with pytest.raises(SandboxFailed, match="command"):
        check(Program(command=command))


@pytest.mark.parametrize("limit", [field.name for field in dataclasses.fields(ProgramLimits)])
def test_limits_are_numbers_and_never_wider_than_the_sandboxs(limit: str) -> None:
    wrongs: tuple[Any, ...] = (0, -1, float("nan"), float("inf"))
    for wrong in wrongs:
        with pytest.raises(SandboxFailed, match=f"limits.{limit}"):
            check(Program(command=("x",), limits=dataclasses.replace(ProgramLimits(), **{limit: wrong})))
    wide = dataclasses.replace(ProgramLimits(), **{limit: 10**9})
    assert bounded(Program(command=("x",), limits=wide), within=ProgramLimits()).limits == ProgramLimits()
