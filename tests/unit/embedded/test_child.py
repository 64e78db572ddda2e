"""Child processes: what is left of them, and what they said last."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trimtab.embedded.child import Child, Command, log_tail


def test_the_tail_of_a_long_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert log_tail(log, lines=2) == "line 99998\nline 99999"
    log.write_text("short")
    assert log_tail(log) == "short"
    assert log_tail(tmp_path / "none") == "(no log)"


def test_a_group_is_killed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may belong to someone else by the second time."""
    process = Child(Command(arguments=[sys.executable, "-c", "pass"], log_file=tmp_path / "log", folder=tmp_path))
    assert process.wait(200.0) == 0
    process.kill()

    def never(group: int, signum: int) -> None:
        raise AssertionError(f"signalled {group} again")

    monkeypatch.setattr(os, "killpg", never)
    process.kill()
    process.stop(grace_s=1.0)
