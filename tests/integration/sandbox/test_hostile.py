"""Programs that mean harm, on one machine: nothing gets out, nothing is left, and those beside them go on."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.hostile_programs import DAEMON, FLOODS, FORBIDDEN, NEEDED, REFUSED, attempts, outcomes
from tests.support.polling import eventually
from tests.support.sandbox import PATIENT, python, told
from trimtab.rollout.sandbox.contract import End, Program, Sandbox

SECRET = "the worker's credentials"
SHORT = dataclasses.replace(
    PATIENT, wall_s=4, memory_bytes=96 << 20, disk_bytes=8 << 20, output_bytes=100_000, processes=16
)
QUICK = ("forks", "memory", "output", "deaf")


@dataclass(frozen=True)
class Places:
    secret: Path
    port: int
    abstract: str

    def program(self, of: dict[str, str]) -> Program:
        where = {"secret": str(self.secret), "port": self.port, "abstract": self.abstract}
        return python(attempts(of, worker=os.getpid(), **where))  # type: ignore[arg-type]


@pytest.fixture
async def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Places]:
    """Everything that an attempt is about is there: only the sandbox can make it fail."""
    secret = tmp_path / "nats.creds"
    secret.write_text(SECRET)
    monkeypatch.setenv("TRIMTAB_SECRET", SECRET)
    abstract = f"\0{uuid.uuid4().hex}"

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    tcp = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = tcp.sockets[0].getsockname()[1]
    unix = await asyncio.start_unix_server(accept, abstract)
    yield Places(secret, port, abstract)
    tcp.close()
    unix.close()


async def test_nothing_of_the_worker_can_be_reached(sandbox: Sandbox, places: Places) -> None:
    ended = await sandbox.run(places.program(FORBIDDEN))
    assert ended.succeeded, told(ended)
    became = outcomes(ended.stdout)
    assert set(became) == set(FORBIDDEN)
    assert {name: what for name, what in became.items() if what not in REFUSED} == {}
    assert SECRET.encode() not in ended.stdout + ended.stderr
    assert places.secret.read_text() == SECRET


async def test_what_programs_need_works(sandbox: Sandbox, places: Places) -> None:
    ended = await sandbox.run(places.program(NEEDED))
    became = outcomes(ended.stdout)
    assert {name: what for name, what in became.items() if not what.startswith("did")} == {}


async def test_the_attempts_work_where_nothing_holds_them(places: Places, tmp_path: Path) -> None:
    """Otherwise they would prove nothing. Those that would end the worker, or the machine, are left out."""
    harmless = (
        *("read_secret", "read_secret_by_a_link", "read_environment", "read_guards_environment", "see_descriptors"),
        *(
            "walk_by_a_root",
            "walk_by_a_folder",
            "connect",
            "connect_by_ipv6",
            "send_a_datagram",
            "connect_to_an_abstract_name",
        ),
        *("listen", "listen_on_a_path", "netlink", "datagram_pair", "inotify", "memory_file", "messages"),
    )
    program = places.program({name: FORBIDDEN[name] for name in harmless})
    process = await asyncio.create_subprocess_exec(
        "python3", "-c", program.files["main.py"].decode(), stdout=asyncio.subprocess.PIPE, cwd=tmp_path
    )
    printed, _ = await process.communicate()
    assert {name: what for name, what in outcomes(printed).items() if not what.startswith("did")} == {}


async def flooded(sandbox: Sandbox, name: str) -> None:
    flood = asyncio.create_task(sandbox.run(python(FLOODS[name], limits=SHORT)))
    # Whoever runs beside it goes on.
    beside = await sandbox.run(python("print(sum(range(1000)))"))
    ended = await flood
    assert beside.stdout == b"499500\n", told(beside)
    assert not ended.succeeded, told(ended)
    assert len(ended.stdout) + len(ended.stderr) <= SHORT.output_bytes
    assert ended.usage.wall_s < 60
    # Each process alone is held by the kernel; all of them together by a look ten times a second.
    assert ended.usage.peak_memory_bytes <= SHORT.processes * SHORT.memory_bytes


@pytest.mark.parametrize("name", QUICK)
async def test_a_flood_ends(sandbox: Sandbox, name: str) -> None:
    await flooded(sandbox, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(FLOODS) - set(QUICK)))
async def test_every_flood_ends(sandbox: Sandbox, name: str) -> None:
    await flooded(sandbox, name)


async def test_daemons_end_with_the_program(sandbox: Sandbox) -> None:
    before = _processes()
    ended = await sandbox.run(python(DAEMON))
    assert (ended.end, ended.stdout) == (End.EXITED, b"gone\n"), told(ended)
    await eventually(lambda: _processes() <= before + 1, timeout_s=30)


async def test_collecting_follows_nothing_out(sandbox: Sandbox, places: Places) -> None:
    source = f"""
import os
os.symlink({str(places.secret)!r}, "link")
os.symlink("/etc", "folder")
os.symlink("real", "inside")
os.mkfifo("pipe")
os.mkdir("kept")
open("real", "w").write("x")
for name in "sparse", "another": open(name, "w").truncate(3 << 20)
"""
    wanted = ("link", "folder/hostname", "inside", "pipe", "kept", "real", "sparse", "another", "real/x", "n" * 255)
    ended = await sandbox.run(python(source, collect=wanted, limits=dataclasses.replace(PATIENT, disk_bytes=1 << 22)))
    # Not more than the disk holds comes back, whatever files claim to be.
    assert dict(ended.files) == {"real": b"x", "sparse": bytes(3 << 20)}, told(ended)


async def test_long_names_and_huge_commands(sandbox: Sandbox) -> None:
    names = {"/".join(["d" * 200] * 9) + "/f": b"deep", "f" * 255: b"long"}
    source = "import os; print(sum(len(files) for _, _, files in os.walk('.')))"
    ended = await sandbox.run(python(source, files=names, collect=tuple(names)))
    assert (ended.stdout, dict(ended.files)) == (b"3\n", names), told(ended)
    many = ("python3", "-c", "import sys; print(len(sys.argv))", *("x" * 1000,) * 900)
    ended = await sandbox.run(Program(command=many, limits=PATIENT))
    assert ended.stdout == b"901\n", told(ended)


def _processes() -> int:
    return sum(entry.name.isdigit() for entry in Path("/proc").iterdir())
