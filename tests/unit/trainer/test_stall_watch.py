"""A trainer that stands still says where, once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from trimtab.trainer.stall_watch import StallWatch

_LIMIT_S = 0.04


def _waits_for_ever(release: threading.Event) -> None:
    release.wait(30.0)


def _written(path: Path) -> str:
    end = time.monotonic() + 30.0
    while "most recent call first" not in (text := path.read_text()):
        assert time.monotonic() < end, "nothing was written"
        time.sleep(0.005)
    return text


def test_it_shows_where_each_thread_stands_and_is_silent_while_things_move(tmp_path: Path) -> None:
    release = threading.Event()
    stuck = threading.Thread(target=_waits_for_ever, args=(release,))
    stuck.start()
    now = [0.0]
    with (tmp_path / "stacks").open("w") as out, StallWatch(limit_s=_LIMIT_S, clock=lambda: now[0], out=out) as watch:
        time.sleep(4 * _LIMIT_S)
        assert not (tmp_path / "stacks").read_text(), "no time has passed"
        now[0] = 1.0
        assert "_waits_for_ever" in _written(tmp_path / "stacks")
        time.sleep(4 * _LIMIT_S)
        assert _written(tmp_path / "stacks").count("_waits_for_ever") == 1
        watch.moved()
        now[0] = 2.0
        end = time.monotonic() + 30.0
        while _written(tmp_path / "stacks").count("_waits_for_ever") < 2:
            assert time.monotonic() < end
            time.sleep(0.005)
    release.set()
    stuck.join()
