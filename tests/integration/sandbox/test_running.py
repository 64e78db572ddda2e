"""What a program is given, what comes back, and whose failure is whose."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal

import psutil
import pytest

from tests.support.polling import eventually
from tests.support.sandbox import PATIENT, a_sandbox, python, told
from trimtab.rollout.sandbox.contract import End, Program, Sandbox, SandboxFailed


async def test_a_program_reads_its_files_and_its_input_and_leaves_files(sandbox: Sandbox) -> None:
    source = """
import sys, pathlib
import inner.module
pathlib.Path("out").mkdir()
pathlib.Path("out/answer").write_text(sys.stdin.read().upper() + inner.module.WORD)
print("done"); print("a warning", file=sys.stderr)
"""
    ended = await sandbox.run(
        python(
            source, files={"inner/module.py": b"WORD = '!'"}, stdin=b"hello", collect=("out/answer", "missing", "out")
        )
    )
    assert ended.succeeded, told(ended)
    assert (ended.stdout, ended.stderr) == (b"done\n", b"a warning\n")
    assert ended.files == {"out/answer": b"HELLO!"}
    assert 0 < ended.usage.cpu_s < ended.usage.wall_s * 4
    assert ended.usage.peak_memory_bytes > 1 << 20


async def test_a_programs_failure_is_the_programs(sandbox: Sandbox) -> None:
    failed = await sandbox.run(python("raise SystemExit(3)"))
    assert (failed.end, failed.exit_code) == (End.EXITED, 3)
    crashed = await sandbox.run(python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert (crashed.end, crashed.exit_code) == (End.SIGNALLED, -signal.SIGSEGV)
    missing = await sandbox.run(Program(command=("no-such-program",), limits=PATIENT))
    assert (missing.end, missing.exit_code) == (End.EXITED, 127)
    assert b"no-such-program" in missing.stderr


async def test_python_is_plain(sandbox: Sandbox) -> None:
    ended = await sandbox.run(python("import numpy"))
    assert b"No module named 'numpy'" in ended.stderr
    standard = "import json, ssl, sqlite3, multiprocessing, asyncio, os; print(sorted(os.environ), os.getcwd()[-7:])"
    ended = await sandbox.run(python(standard))
    assert ended.stdout == b"['HOME', 'LANG', 'PATH', 'TMPDIR'] program\n", told(ended)


@pytest.mark.parametrize(
    ("limits", "source", "end"),
    [
        ({"wall_s": 1}, "import time; time.sleep(60)", End.TIME),
        ({"cpu_s": 1}, "while True: pass", End.TIME),
        ({"output_bytes": 1000}, "print('x' * 2000)", End.OUTPUT),
        (
            {"memory_bytes": 128 << 20},
            "import os, time\nfor _ in range(3): os.fork() or (bytearray(96 << 20), time.sleep(60))\ntime.sleep(60)",
            End.MEMORY,
        ),
    ],
)
async def test_what_goes_beyond_a_limit_ends(sandbox: Sandbox, limits: dict[str, int], source: str, end: End) -> None:
    ended = await sandbox.run(python(source, limits=dataclasses.replace(PATIENT, **limits)))
    assert ended.end is end, told(ended)
    assert not ended.succeeded
    assert len(ended.stdout) <= limits.get("output_bytes", 0)


async def test_a_full_disk_is_the_programs_to_notice(sandbox: Sandbox) -> None:
    source = """
import errno
try:
    for number in range(100):
        open(str(number), "wb").write(bytes(1 << 20))
except OSError as error:
    print(number, errno.errorcode[error.errno])
"""
    ended = await sandbox.run(python(source, limits=dataclasses.replace(PATIENT, disk_bytes=8 << 20)))
    noticed = ended.stdout in (b"7 ENOSPC\n", b"8 ENOSPC\n")
    # Where it has no disk of its own, it is ended by whoever counts.
    assert noticed or (ended.end, ended.exit_code) == (End.SIGNALLED, -signal.SIGXFSZ), told(ended)


async def test_what_cannot_be_run_is_the_sandboxs_failure(sandbox: Sandbox) -> None:
    for wrong, field in (
        (Program(command=()), "command"),
        (Program(command=("python3",), files={"../escape": b""}), "files"),
        (Program(command=("python3",), collect=("/etc/passwd",)), "collect"),
        (Program(command=("python3",), limits=dataclasses.replace(PATIENT, wall_s=-1)), "limits.wall_s"),
        (
            Program(command=("python3",), stdin=bytes(2 << 20), limits=dataclasses.replace(PATIENT, disk_bytes=1)),
            "disk",
        ),
    ):
        with pytest.raises(SandboxFailed, match=field):
            await sandbox.run(wrong)


async def test_a_program_that_nobody_waits_for_ends(sandbox: Sandbox) -> None:
    async with a_sandbox(concurrency=1) as narrow:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await narrow.run(python("import time; time.sleep(600)"))
        # Else there would be no room for this one.
        async with asyncio.timeout(30):
            assert (await narrow.run(python("print(1)"))).succeeded


def _zygote_of(word: str) -> psutil.Process | None:
    """The child of ours from which a command with this word was started; other tests have children here too."""
    for child in psutil.Process().children():
        for process in child.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it ended while we looked
                if word in process.cmdline():
                    return child
    return None


async def test_a_sandbox_that_was_killed_is_started_again(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.run(python("import time; time.sleep(600)")))
    await eventually(lambda: _zygote_of("main.py") is not None, timeout_s=30)
    zygote = _zygote_of("main.py")
    assert zygote is not None
    zygote.kill()
    # Nobody knows what the program would have done.
    with pytest.raises(SandboxFailed, match="lost"):
        await running

    async def runs() -> bool:
        with contextlib.suppress(SandboxFailed):
            return (await sandbox.run(python("print(1)"))).succeeded
        return False

    await eventually(runs, timeout_s=30)


async def test_a_program_finds_nothing_of_the_one_before(sandbox: Sandbox) -> None:
    leave = "import os\nfor place in '.', os.environ['TMPDIR']: open(place + '/left', 'w').write('x')\nprint('left')"
    look = "import os\nprint([os.listdir(place) for place in ('.', os.environ['TMPDIR'])])"
    assert (await sandbox.run(python(leave))).stdout == b"left\n"
    for _ in range(3):
        assert (await sandbox.run(python(look))).stdout == b"[['main.py'], []]\n"
