"""Loopback ports for embedded servers.

A port is chosen long before its server listens: an engine imports for seconds. So it comes from below the range from
which the kernel gives ports to clients that connect, and its number is claimed, or another process could have it in the
meantime.
"""

from __future__ import annotations

import atexit
import itertools
import os
import socket
from contextlib import ExitStack
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LOWEST = 10_000
_FEWEST = 2_000
"""With fewer to choose from, any port must do."""
_KERNELS = Path("/proc/sys/net/ipv4/ip_local_port_range")

# Each process begins at a place of its own and goes on from there: no port is handed out twice within a short time.
_handed_out = itertools.count()
_APART = 7919

# Other processes see them. A claim is a name in the network namespace, as a port is, and ends with its process; the
# oldest end before, as their servers have long begun to listen.
_claims: dict[int, socket.socket] = {}
_MOST_CLAIMS = 64


def free_ports(count: int, *, candidates: range | None = None) -> list[int]:
    """Distinct ports that are free now; all are held open until the last is found, so that none is handed out twice.

    Without candidates, they are all that the kernel does not give away.
    """
    if candidates is None:
        candidates = _candidates()
    numbers = itertools.islice(_handed_out, len(candidates))
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < count:
            number = next(numbers, None)
            if number is None:
                raise OSError(f"no {count} free ports between {candidates[0]} and {candidates[-1]} on {LOOPBACK}")
            port = candidates[(_APART * os.getpid() + number) % len(candidates)]
            if not _claim(port):
                continue
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                sock.bind((LOOPBACK, port))
            except OSError:
                sock.close()
                continue
            held.enter_context(sock)
            ports.append(port)
    return ports


def is_free(port: int) -> bool:
    """Whether a server could bind the port now; with SO_REUSEADDR as servers set it: TIME_WAIT is not taken."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _claim(port: int) -> bool:
    """Whether no other process has claimed it."""
    if port in _claims:
        return True
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0trimtab-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims[port] = claim
    if len(_claims) > _MOST_CLAIMS:
        _claims.pop(next(iter(_claims))).close()
    return True


def _forget_claims() -> None:
    """In a fork, those of the process that was forked stay its own."""
    while _claims:
        _claims.popitem()[1].close()


os.register_at_fork(after_in_child=_forget_claims)
atexit.register(_forget_claims)


def _candidates() -> range:
    try:
        lowest_of_kernel = int(_KERNELS.read_text(encoding="utf-8").split()[0])
    except OSError:
        lowest_of_kernel = 32_768
    below = range(_LOWEST, lowest_of_kernel)
    return below if len(below) >= _FEWEST else range(_LOWEST, 65_536)
