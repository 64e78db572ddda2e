"""Takes calls to the kernel from a process for good, by a seccomp filter: those that Landlock has no rule for.

It is executed beside guard.py, with the standard library alone. A socket in the file system, such as that of a
container runtime, is reached by whoever has its user id, and so are the limits and priorities of the worker. And a
process that wants a child waits until fork_permits.py has said yes: the kernel's own limit counts all processes of a
user, on all of the machine, and root's not at all.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_SET_FILTER, _WITH_LISTENER = 1, 8
_PR_SET_NO_NEW_PRIVS = 38
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW = 0x7FFF0000
_ASK = 0x7FC00000
_REFUSE = 0x00050000 | errno.EPERM
_ABSENT = 0x00050000 | errno.ENOSYS
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_SOCKET_KIND = 0xF
_RING_SETUP = 425
"""Of io_uring, alike everywhere: what is asked through it passes no filter."""
_CLONE_WITH_STRUCTURE = 435
"""Alike everywhere. A filter cannot read what is behind a pointer; libraries go back to the older call."""
_THREAD = 0x10000
_NAMESPACES = 0x7E020000
"""What clone takes for namespaces of the child's own."""
_OTHER_INTERFACE = 0x40000000
"""Added to the numbers of x86-64's calls with short pointers."""


@dataclass(frozen=True)
class _Calls:
    """The numbers of one architecture."""

    architecture: int
    seccomp: int
    clone: int
    forks: tuple[int, ...]
    socket: int
    socketpair: int
    of_itself_alone: tuple[int, ...]
    """Their first argument is a process: prlimit64, sched_setparam, sched_setscheduler, sched_setaffinity, and
    sched_setattr.
    """
    by_kind: tuple[tuple[int, int], ...]
    """Their first argument is a kind of processes, the second which: setpriority and ioprio_set. With the kind that
    stands for all of a user.
    """


_CALLS: Mapping[str, _Calls] = {
    "x86_64": _Calls(0xC000003E, 317, 56, (57, 58), 41, 53, (302, 142, 144, 203, 314), ((141, 2), (251, 3))),
    "aarch64": _Calls(0xC00000B7, 277, 220, (), 198, 199, (261, 118, 119, 122, 274), ((140, 2), (30, 3))),
}
_REFUSED_ALIKE = (
    *(424, 434, 438),  # pidfd_send_signal, pidfd_open, pidfd_getfd
    *(428, 429, 430, 431, 432, 433, 442, 467),  # the newer mount calls
    447,  # memfd_secret
)
_REFUSED: Mapping[str, tuple[int, ...]] = {
    "x86_64": (
        *(101, 310, 311, 312),  # ptrace, process_vm_readv, process_vm_writev, kcmp
        *(248, 249, 250),  # add_key, request_key, keyctl: the keyring is the worker's
        *(298, 321, 323),  # perf_event_open, bpf, userfaultfd
        *(155, 161, 165, 166, 272, 308),  # pivot_root, chroot, mount, umount2, unshare, setns
        *(253, 294, 300),  # inotify_init, inotify_init1, fanotify_init: counted for each user of the machine
        *(29, 64, 68, 240, 319),  # shmget, semget, msgget, mq_open, memfd_create: memory that no process has
        *(103, 303, 304),  # syslog, name_to_handle_at, open_by_handle_at
    ),
    "aarch64": (
        *(117, 270, 271, 272),
        *(217, 218, 219),
        *(241, 280, 282),
        *(41, 51, 40, 39, 97, 268),
        *(26, 262),
        *(194, 190, 186, 180, 279),
        *(116, 264, 265),
    ),
}
Step = tuple[int, int, int, int]
_libc = ctypes.CDLL(None, use_errno=True)


class Unfiltered(RuntimeError):
    """There is no filter for machines of this kind."""


def program(*, network: bool, machine: str) -> list[Step]:
    """Sockets of the internet alone, without `network` TCP alone, and nothing that reaches into other processes."""
    if machine not in _CALLS:
        raise Unfiltered(f"agents are contained on {' and '.join(_CALLS)}, and this is {machine}")
    calls = _CALLS[machine]
    steps = _of_this_machine(calls)
    kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM) if network else (socket.SOCK_STREAM,)
    internet = (socket.AF_INET, socket.AF_INET6)
    # Threads are bounded by memory, each with its stack.
    steps += _for_call(calls.clone, [(_LOAD, 0, 0, _at(0)), (_ANY_BIT, 1, 0, _THREAD), (_RETURN, 0, 0, _ASK)])
    for number in calls.forks:
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ASK)]
    # Names of hosts are looked up with the help of netlink.
    families = [
        *_unless_one_of((socket.AF_NETLINK, *internet), argument=0, otherwise=_REFUSE),
        (_EQUAL, 0, 1, socket.AF_NETLINK),
        (_RETURN, 0, 0, _ALLOW),
        *_unless_one_of(kinds, argument=1, otherwise=_REFUSE, mask=_SOCKET_KIND),
    ]
    steps += _for_call(calls.socket, families)
    return [*steps, *_to_itself_alone(calls), (_RETURN, 0, 0, _ALLOW)]


def sealed(*, machine: str) -> list[Step]:
    """For a program that a model wrote: no sockets but pairs, nothing that reaches into other processes, nothing that
    outlives it, and a permit for every thread too.
    """
    if machine not in _CALLS:
        raise Unfiltered(f"programs are contained on {' and '.join(_CALLS)}, and this is {machine}")
    calls = _CALLS[machine]
    steps = _of_this_machine(calls)
    for number in (calls.socket, *_REFUSED[machine], *_REFUSED_ALIKE):
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    own: list[Step] = [(_LOAD, 0, 0, _at(0)), (_ANY_BIT, 0, 1, _NAMESPACES), (_RETURN, 0, 0, _REFUSE)]
    steps += _for_call(calls.clone, [*own, (_RETURN, 0, 0, _ASK)])
    for number in calls.forks:
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ASK)]
    return [*steps, *_to_itself_alone(calls), (_RETURN, 0, 0, _ALLOW)]


def _of_this_machine(calls: _Calls) -> list[Step]:
    """Loads the number of the call, if it is one of those that the rest knows."""
    steps: list[Step] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, calls.architecture),
        (_RETURN, 0, 0, _ABSENT),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _OTHER_INTERFACE),
        (_RETURN, 0, 0, _ABSENT),
    ]
    for number in (_RING_SETUP, _CLONE_WITH_STRUCTURE):
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ABSENT)]
    return steps


def _to_itself_alone(calls: _Calls) -> list[Step]:
    # One pair of datagrams could send to any other.
    pairs = _unless_one_of(
        (socket.SOCK_STREAM, socket.SOCK_SEQPACKET), argument=1, otherwise=_REFUSE, mask=_SOCKET_KIND
    )
    steps = _for_call(calls.socketpair, pairs)
    for number in calls.of_itself_alone:
        steps += _for_call(number, _unless_one_of((0,), argument=0, otherwise=_REFUSE))
    for number, of_a_user in calls.by_kind:
        kind: list[Step] = [(_LOAD, 0, 0, _at(0)), (_AT_LEAST, 0, 1, of_a_user), (_RETURN, 0, 0, _REFUSE)]
        steps += _for_call(number, [*kind, *_unless_one_of((0,), argument=1, otherwise=_REFUSE)])
    return steps


def give_up_privileges() -> None:
    """No program that this process starts gives it more than it has, whatever that program's file says."""
    zero = ctypes.c_ulong(0)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def install(steps: list[Step], *, machine: str) -> int:
    """For this process, and all that it will start. It must have given up new privileges before. Returns the descriptor
    that whoever gives out permits reads from.
    """
    code = b"".join(struct.pack("HBBI", operation, yes, no, value) for operation, yes, no, value in steps)
    held = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(held))
    number = ctypes.c_long(_CALLS[machine].seccomp)
    flags = (ctypes.c_uint(_SET_FILTER), ctypes.c_uint(_WITH_LISTENER))
    listener: int = _libc.syscall(number, *flags, ctypes.c_char_p(described))
    if listener < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return listener


def _at(argument: int) -> int:
    """Its lower half, which is the first: both architectures begin with the low byte. All that is looked at are ints,
    of which the kernel reads no more.
    """
    return _ARGUMENTS_AT + 8 * argument


def _unless_one_of(values: tuple[int, ...], *, argument: int, otherwise: int, mask: int | None = None) -> list[Step]:
    """Falls through for one of the values."""
    steps: list[Step] = [(_LOAD, 0, 0, _at(argument))]
    if mask is not None:
        steps.append((_AND, 0, 0, mask))
    steps += [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [*steps, (_RETURN, 0, 0, otherwise)]


def _for_call(number: int, body: list[Step]) -> list[Step]:
    """The number is what was loaded last, before and after."""
    return [(_EQUAL, 0, len(body) + 1, number), *body, (_RETURN, 0, 0, _ALLOW)]
