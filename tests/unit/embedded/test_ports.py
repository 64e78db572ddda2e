"""Ports that stay free until their server comes."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.embedded.ports import LOOPBACK, free_ports, is_free


def test_nobody_who_asks_for_any_port_is_given_one_of_them() -> None:
    lowest_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    chosen = free_ports(50)
    assert len(set(chosen)) == 50
    assert max(chosen) < lowest_of_kernel
    assert all(map(is_free, chosen))


def test_who_wants_none_gets_none() -> None:
    assert free_ports(0) == []


def test_what_was_handed_out_is_not_handed_out_again_though_nobody_listens_yet() -> None:
    chosen = [port for _ in range(40) for port in free_ports(5)]
    assert len(set(chosen)) == 200


def test_a_port_in_use_is_passed_over() -> None:
    first, second, third = sorted(free_ports(3))
    candidates = range(first, third + 1)
    with socket.socket() as taken:
        taken.bind((LOOPBACK, second))
        assert second not in {port for _ in range(6) for port in free_ports(1, candidates=candidates)}


def test_what_another_process_has_chosen_is_passed_over_though_nobody_listens_yet() -> None:
    chosen = sorted(free_ports(20))
    candidates = range(chosen[0], chosen[-1] + 1)
    asks = (
        "import sys; from trimtab.embedded.ports import free_ports;"
        "print(*free_ports(1, candidates=range(*map(int, sys.argv[1:]))))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", asks, str(candidates.start), str(candidates.stop)], capture_output=True
    )
    assert asked.returncode != 0 or int(asked.stdout) not in chosen
    assert asked.returncode == 0 or b"no 1 free ports" in asked.stderr


def test_where_none_is_free_it_says_so() -> None:
    (port,) = free_ports(1)
    with socket.socket() as taken:
        taken.bind((LOOPBACK, port))
        with pytest.raises(OSError, match=f"no 1 free ports between {port}"):
            free_ports(1, candidates=range(port, port + 1))
