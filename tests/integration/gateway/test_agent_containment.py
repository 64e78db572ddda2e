"""What an agent that means harm can reach: its own folder, and the port that it was given."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from trimtab.rollout.agents import landlock
from trimtab.rollout.agents.files import readable
from trimtab.rollout.agents.folder import agent_folder, make_harmless
from trimtab.rollout.agents.process import (
    AgentFailed,
    AgentLimits,
    AgentReach,
    AgentUncontained,
    run_agent,
)

pytestmark = pytest.mark.skipif(
    bool(landlock.missing(landlock.version())), reason=f"the kernel is older than Linux {landlock.COMPLETE_SINCE}"
)
SECRET = "the worker's credentials"
# The agent's side: each attempt is a function, of which the outcome is told by name.
ATTEMPTS = """
import ctypes, json, os, resource, socket, subprocess, sys
told, libc = {}, ctypes.CDLL(None, use_errno=True)
worker, credentials, other, path, abstract, port, elsewhere = (PLACES[name] for name in (
    "worker", "credentials", "other", "path", "abstract", "port", "elsewhere"))
def attempt(function):
    try:
        told[function.__name__] = f"did: {function()!r:.80}"
    except OSError as error:
        told[function.__name__] = os.strerror(error.errno)
def call(function, *arguments):
    result = function(*(ctypes.c_long(value) if isinstance(value, int) else value for value in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
held = ctypes.create_string_buffer(8)
byte = ((ctypes.c_size_t * 2)(ctypes.addressof(held), 1), 1)
def connected(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as made:
        made.settimeout(5)
        made.connect(address)
"""
FORBIDDEN = {
    "read_credentials": "open(credentials).read()",
    "read_credentials_by_a_link": "os.symlink(credentials, 'link'), open('link').read()",
    "read_credentials_by_a_hard_link": "os.link(credentials, 'hard'), open('hard').read()",
    "read_credentials_by_a_descriptor": "open(f'/proc/self/fd/{os.open(credentials, os.O_PATH)}').read()",
    "rename_credentials": "os.rename(credentials, 'mine')",
    "cut_credentials": "os.truncate(credentials, 0)",
    "remove_credentials": "os.remove(credentials)",
    "run_credentials": "subprocess.run([credentials])",
    "list_another_agents_folder": "os.listdir(other)",
    "read_another_agents_file": "open(other + '/prompt.json').read()",
    "write_another_agents_file": "open(other + '/prompt.json', 'a')",
    "write_beside_it": "open(os.path.dirname(credentials) + '/new', 'w')",
    "write_in_tmp": "open('/tmp/agent-was-here', 'w')",
    "write_shared_memory": "open('/dev/shm/agent-was-here', 'w')",
    "write_a_program": "open(os.__file__, 'a')",
    "list_secrets": "os.listdir('/var/run')",
    "read_shadow": "open('/etc/shadow').read()",
    "read_environment": "open(f'/proc/{worker}/environ').read()",
    "read_maps": "open(f'/proc/{worker}/maps').read()",
    "read_memory": "open(f'/proc/{worker}/mem', 'rb').read(1)",
    "see_descriptors": "os.readlink(f'/proc/{worker}/fd/0')",
    "walk_by_its_root": "open(f'/proc/{worker}/root' + credentials).read()",
    "read_guards_environment": "open(f'/proc/{os.getppid()}/environ').read()",
    "attach": "call(libc.ptrace, 16, worker, 0, 0)",
    "seize": "call(libc.ptrace, 0x4206, worker, 0, 0)",
    "read_by_process_vm": "call(libc.process_vm_readv, worker, *byte, *byte, 0)",
    "take_a_descriptor": "call(libc.syscall, 438, os.pidfd_open(worker), 0, 0)",
    "kill": "os.kill(worker, 9)",
    "kill_the_guard": "os.kill(os.getppid(), 9)",
    "kill_by_pidfd": "call(libc.syscall, 424, os.pidfd_open(worker), 9, None, 0)",
    "limit": "resource.prlimit(worker, resource.RLIMIT_CPU, (1, 1))",
    "slow_down": "os.setpriority(os.PRIO_PROCESS, worker, 19)",
    "slow_down_all": "os.setpriority(os.PRIO_USER, 0, 19)",
    "pin": "os.sched_setaffinity(worker, {0})",
    "connect_elsewhere": "connected(socket.AF_INET, ('127.0.0.1', elsewhere))",
    "connect_elsewhere_by_ipv6": "connected(socket.AF_INET6, ('::ffff:127.0.0.1', elsewhere))",
    "listen": "socket.create_server(('127.0.0.1', 0))",
    "send_a_datagram": "connected(socket.AF_INET, ('127.0.0.1', elsewhere), socket.SOCK_DGRAM)",
    "connect_to_a_path": "connected(socket.AF_UNIX, path)",
    "connect_to_an_abstract_name": "connected(socket.AF_UNIX, abstract)",
    "send_from_a_pair": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', path)",
    "capture_packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "ring": "call(libc.syscall, 425, 8, ctypes.create_string_buffer(120))",
    "become_root_again": "os.setuid(0 if os.getuid() else 1), open(credentials).read()",
    "mount": "call(libc.mount, b'none', b'.', b'tmpfs', 0, None)",
    "chroot": "os.chroot('.')",
}
ALLOWED = {
    "write_its_folder": "open('mine', 'w').write('x'), os.mkdir('inner'), os.rename('mine', 'inner/mine')",
    "run_programs": "subprocess.run(['/bin/sh', '-c', 'echo x > /dev/null; cat /proc/self/status'], check=True)",
    "run_python": "subprocess.run([sys.executable, '-c', 'import ssl, json, ctypes'], check=True)",
    "connect_to_the_gateway": "connected(socket.AF_INET, ('127.0.0.1', port))",
    "pair": "socket.socketpair()",
    "draw": "open('/dev/urandom', 'rb').read(8)",
    "resolve": "socket.getaddrinfo('localhost', 80)",
    "limit_itself": "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
}


@dataclass(frozen=True)
class Places:
    folder: Path
    other: Path
    credentials: Path
    path: Path
    abstract: str
    port: int
    elsewhere: int

    def for_agent(self) -> str:
        places = {name: str(value) for name, value in vars(self).items()}
        return json.dumps(places | {"worker": os.getpid(), "port": self.port, "elsewhere": self.elsewhere})


@pytest.fixture
async def places(tmp_path: Path) -> AsyncIterator[Places]:
    """Everything that an attempt is about is there: only containment can make it fail."""
    credentials = tmp_path / "secrets" / "nats.creds"
    credentials.parent.mkdir()
    credentials.write_text(f"#!/bin/sh\necho {SECRET}")
    credentials.chmod(0o700)
    path = Path("/tmp", f"{uuid.uuid4().hex}.sock")
    abstract = f"\0{uuid.uuid4().hex}"

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    tcp = [await asyncio.start_server(accept, "127.0.0.1", 0) for _ in range(2)]
    unix = [await asyncio.start_unix_server(accept, name) for name in (path, abstract)]
    port, elsewhere = (server.sockets[0].getsockname()[1] for server in tcp)
    async with agent_folder() as folder, agent_folder() as other:
        (other / "prompt.json").write_text(SECRET)
        yield Places(folder, other, credentials, path, abstract, port, elsewhere)
    for server in (*tcp, *unix):
        server.close()
    path.unlink(missing_ok=True)


async def outcomes(places: Places, attempts: dict[str, str]) -> dict[str, str]:
    lines = [f"def {name}(): return {what}\nattempt({name})" for name, what in attempts.items()]
    program = "\n".join([f"PLACES = {json.loads(places.for_agent())!r}", ATTEMPTS, *lines, "print(json.dumps(told))"])
    told: dict[str, str] = json.loads(await run(places.folder, program, ports=[places.port]))
    assert set(told) == set(attempts)
    return told


async def run(
    folder: Path, program: str, *, ports: Sequence[int] | None = (), memory: int = 1 << 30, more: Sequence[str] = ()
) -> str:
    (folder / "prompt").write_text("{}")
    command = [sys.executable, "-S", "-c", program]
    reach = AgentReach(
        read=readable(command, source=None, more=more, executables=os.defpath),
        ports=None if ports is None else list(ports),
    )
    ran = await run_agent(
        command,
        environment={"PATH": os.defpath},
        given=folder / "prompt",
        folder=folder,
        reach=reach,
        limits=AgentLimits(time_s=120, memory_bytes=memory, output_bytes=1 << 20),
    )
    return ran.output.splitlines()[-1] if ran.output else ""


async def test_nothing_that_is_the_workers_can_be_reached(places: Places) -> None:
    told = await outcomes(places, FORBIDDEN)
    refused = {"Permission denied", "Operation not permitted", "Function not implemented", "Invalid cross-device link"}
    assert {name: what for name, what in told.items() if what not in refused} == {}
    assert SECRET in places.credentials.read_text()
    assert (places.other / "prompt.json").read_text() == SECRET


async def test_what_an_agent_needs_works(places: Places) -> None:
    told = await outcomes(places, ALLOWED)
    assert {name: what for name, what in told.items() if not what.startswith("did")} == {}


async def test_the_attempts_work_where_nothing_contains_them(places: Places) -> None:
    """Otherwise they would prove nothing. Those that would end the worker, or the machine, are left out."""
    harmless = (
        *("read_credentials", "read_credentials_by_a_link", "list_another_agents_folder", "read_environment"),
        *("read_maps", "see_descriptors", "walk_by_its_root", "connect_elsewhere", "connect_elsewhere_by_ipv6"),
        *("listen", "send_a_datagram", "connect_to_a_path", "connect_to_an_abstract_name", "write_in_tmp"),
    )
    lines = [f"def {name}(): return {FORBIDDEN[name]}\nattempt({name})" for name in harmless]
    program = "\n".join([f"PLACES = {json.loads(places.for_agent())!r}", ATTEMPTS, *lines, "print(json.dumps(told))"])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-S", "-c", program, cwd=places.folder, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), timeout=60)
    Path("/tmp/agent-was-here").unlink(missing_ok=True)
    assert {name: what for name, what in json.loads(output).items() if not what.startswith("did")} == {}


async def test_an_agent_with_the_network_connects_and_listens_but_reaches_no_socket_of_the_machine(
    places: Places,
) -> None:
    names = ("connect_elsewhere", "listen", "send_a_datagram", "connect_to_a_path", "connect_to_an_abstract_name")
    lines = [f"def {name}(): return {FORBIDDEN[name]}\nattempt({name})" for name in names]
    program = "\n".join([f"PLACES = {json.loads(places.for_agent())!r}", ATTEMPTS, *lines, "print(json.dumps(told))"])
    told = json.loads(await run(places.folder, program, ports=None))
    assert [name for name, what in told.items() if what.startswith("did")] == list(names[:3])


async def test_what_the_job_names_can_be_read_and_not_written(places: Places) -> None:
    program = f"print(open({str(places.credentials)!r}).read())\nopen({str(places.credentials)!r}, 'a')"
    with pytest.raises(AgentFailed, match=r"Permission denied.*readable"):
        await run(places.folder, program, more=[str(places.credentials.parent)])


async def test_a_program_that_becomes_root_becomes_nothing(places: Places) -> None:
    """One with the set-user-id bit, in the agent's own folder."""
    program = (
        "import os, shutil, subprocess\nshutil.copy('/bin/cat', 'cat'); os.chmod('cat', 0o4755)\n"
        "ran = subprocess.run(['./cat', '/proc/self/status'], capture_output=True, text=True)\n"
        "print(ran.stdout.replace(chr(10), ' '))"
    )
    status = await run(places.folder, program)
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status


async def test_an_agent_has_so_many_processes_and_no_more(places: Places) -> None:
    """Its children have none themselves, so that no harm is done where nothing stops it."""
    program = "\n".join(
        [
            "import os, time",
            "for started in range(1000):",
            "    try:",
            "        if os.fork() == 0: time.sleep(600)",
            "    except BlockingIOError:",
            "        break",
            "print(started)",
        ]
    )
    assert int(await run(places.folder, program, memory=16 << 30)) == 255
    assert working_in(places.folder) == []


@pytest.mark.parametrize("session", [pytest.param("pass", marks=pytest.mark.slow), "os.setsid()"])
async def test_processes_that_beget_one_another_end_with_the_agent(places: Places, session: str) -> None:
    """Each lives for a moment, so that it is not there any more when it is to be killed."""
    program = "\n".join(
        [
            "import os, time",
            "for head in range(8):",
            "    if os.fork() == 0:",
            f"        {session}",
            "        while True:",
            "            if os.fork(): os._exit(0)",
            "time.sleep(2)",
        ]
    )
    await run(places.folder, program)
    assert working_in(places.folder) == []


async def test_a_file_without_end_is_cut(places: Places) -> None:
    """Sparse: only its length counts."""
    with pytest.raises(AgentFailed, match=r"ended with -25|File too large"):
        await run(places.folder, "open('long', 'w').truncate(5 << 30)")


async def test_what_it_leaves_leads_nowhere(places: Places) -> None:
    program = (
        f"import os\nos.symlink({str(places.credentials)!r}, 'score'); os.symlink({str(places.other)!r}, 'folder')\n"
        "os.mkfifo('pipe'); open('real', 'w').write('1'); os.symlink('real', 'fine'); os.mkdir('shut')\n"
        "os.symlink('../../../etc', 'shut/etc'); os.chmod('shut', 0); os.chmod('.', 0)"
    )
    await run(places.folder, program)
    await make_harmless(places.folder)
    left = {str(path.relative_to(places.folder)) for path in places.folder.rglob("*")}
    assert left == {"prompt", "real", "fine", "shut"}
    assert (places.folder / "fine").read_text() == "1"


async def test_an_agent_that_cannot_be_contained_does_not_run(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is too old cannot be had here."""
    monkeypatch.setattr(landlock, "version", lambda: 4)
    with pytest.raises(AgentUncontained, match=r"send signals to the worker: .*6\.12.*best-effort"):
        await run(places.folder, "open('ran', 'w')")
    assert not (places.folder / "ran").exists()


async def test_an_agent_that_the_kernel_refuses_to_contain_does_not_run(places: Places) -> None:
    """It has one listener for permits at most, so none for an agent within an agent."""
    guard = Path(landlock.__file__).with_name("guard.py")
    program = "\n".join(
        [
            "import json, os, subprocess, sys",
            "limits = {'memory': 1 << 30, 'ports': [], 'listed': [], 'read': ['/'], 'devices': [], 'write': ['.']}",
            "bounds = os.memfd_create('x')",
            "os.write(bounds, json.dumps(limits).encode()); os.lseek(bounds, 0, 0)",
            "(control, hold), (report, told) = os.pipe(), os.pipe()",
            f"words = [sys.executable, '-I', '-S', {str(guard)!r}, str(control), str(told), str(bounds)]",
            "subprocess.run([*words, '/bin/touch', 'ran'], pass_fds=(control, told, bounds), check=True)",
            "print(os.read(report, 4096).decode())",
        ]
    )
    ended = json.loads(await run(places.folder, program, more=[str(guard.parent)]))
    assert "busy" in ended["uncontained"]
    assert not (places.folder / "ran").exists()


def test_folders_of_agents_are_their_own(tmp_path: Path) -> None:
    async def mode() -> int:
        async with agent_folder() as folder:
            return stat.S_IMODE(folder.stat().st_mode)

    assert asyncio.run(mode()) == 0o700


def working_in(folder: Path) -> list[int]:
    """Processes that have it as their working directory."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found
