"""The filter of an agent's calls, as the kernel would run it: for machines of both kinds."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from trimtab.rollout.agents.seccomp import Unfiltered, program

ALLOW, ASK, REFUSE, ABSENT = 0x7FFF0000, 0x7FC00000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {
    "x86_64": {"read": 0, "socket": 41, "socketpair": 53, "clone": 56, "prlimit64": 302, "setpriority": 141},
    "aarch64": {"read": 63, "socket": 198, "socketpair": 199, "clone": 220, "prlimit64": 261, "setpriority": 140},
}
UDP = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC


def verdict(machine: str, call: int, *arguments: int, network: bool = False, architecture: int | None = None) -> int:
    """Classic BPF, as far as the filter uses it."""
    data = struct.pack(
        "<iIQ6Q", call, architecture or ARCHITECTURES[machine], 0, *arguments, *[0] * (6 - len(arguments))
    )
    steps = program(network=network, machine=machine)
    held, at = 0, 0
    while True:
        operation, yes, no, value = steps[at]
        at += 1
        if operation == 0x20:
            (held,) = struct.unpack_from("<I", data, value)
        elif operation == 0x54:
            held &= value
        elif operation == 0x06:
            return value
        else:
            true = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[operation]
            at += yes if true else no


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("read", (0,), ALLOW),
        ("socket", (socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC), ALLOW),
        ("socket", (socket.AF_INET6, socket.SOCK_STREAM), ALLOW),
        ("socket", (socket.AF_INET, UDP), REFUSE),
        ("socket", (socket.AF_INET, socket.SOCK_RAW), REFUSE),
        ("socket", (socket.AF_UNIX, socket.SOCK_STREAM), REFUSE),
        ("socket", (socket.AF_NETLINK, socket.SOCK_RAW), ALLOW),
        ("socketpair", (socket.AF_UNIX, socket.SOCK_STREAM), ALLOW),
        ("socketpair", (socket.AF_UNIX, socket.SOCK_DGRAM), REFUSE),
        ("clone", (0x11,), ASK),
        ("clone", (0x10000 | 0x11,), ALLOW),
        ("prlimit64", (0,), ALLOW),
        ("prlimit64", (77,), REFUSE),
        ("setpriority", (0, 0), ALLOW),
        ("setpriority", (0, 77), REFUSE),
        ("setpriority", (2, 0), REFUSE),
    ],
)
def test_what_becomes_of_a_call(machine: str, call: str, arguments: tuple[int, ...], expected: int) -> None:
    assert verdict(machine, NUMBERS[machine][call], *arguments) == expected


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_that_no_filter_can_judge_are_not_there(machine: str) -> None:
    assert verdict(machine, 425) == ABSENT
    assert verdict(machine, 435) == ABSENT
    assert verdict(machine, 0x40000000 + 41) == ABSENT
    assert verdict(machine, 0, architecture=0x40000003) == ABSENT


def test_an_agent_with_the_network_has_datagrams_and_no_more() -> None:
    number = NUMBERS["x86_64"]["socket"]
    assert verdict("x86_64", number, socket.AF_INET, UDP, network=True) == ALLOW
    assert verdict("x86_64", number, socket.AF_INET, socket.SOCK_RAW, network=True) == REFUSE
    assert verdict("x86_64", number, socket.AF_UNIX, socket.SOCK_STREAM, network=True) == REFUSE


def test_a_machine_of_another_kind_is_named() -> None:
    with pytest.raises(Unfiltered, match="s390x"):
        program(network=False, machine="s390x")
