"""When a job's storage counts as full, and when as having room again."""

from __future__ import annotations

import pytest

from trimtab.operator.plan.room import Filling, Room, judged, size_text
from trimtab.operator.stream_usage import account_fillings, stream_fillings

SHORT = Room(reason="StreamFull", shortage="full")
MIB = 1 << 20


def filling(used: int, *, limit: int = 100, reason: str = "StreamFull") -> Filling:
    return Filling(what=f"what is {used}", reason=reason, used=used, limit=limit, fix="raise it")


@pytest.mark.parametrize(
    ("used", "before", "short"),
    [
        (85, None, False),
        (86, None, True),
        (86, Room(), True),
        (76, SHORT, True),  # it was full, and is not much emptier
        (75, SHORT, False),
        (76, Room(), False),
        (300, None, True),
    ],
)
def test_short_from_85_percent_on_until_75(used: int, before: Room | None, short: bool) -> None:
    assert (judged([filling(used)], before=before).shortage is not None) == short


def test_the_fullest_decides_and_says_what_to_do() -> None:
    room = judged([filling(86), filling(99 * MIB, limit=100 * MIB, reason="AccountFull"), filling(0)], before=None)
    assert room.reason == "AccountFull"
    assert room.shortage is not None
    assert "99% of 100 MiB are in use, no new tasks are admitted; raise it" in room.shortage


def test_without_limits_there_is_room() -> None:
    unlimited = {"config": {"max_bytes": -1, "max_msgs": -1}, "state": {"bytes": 1 << 60, "messages": 1 << 60}}
    assert stream_fillings("TASKS", unlimited) == []
    assert account_fillings({"storage": 1 << 60, "limits": {"max_storage": -1}}) == []
    assert judged([], before=SHORT) == Room()


def test_bytes_and_messages_of_a_stream_both_count() -> None:
    info = {"config": {"max_bytes": 1000, "max_msgs": 10}, "state": {"bytes": 10, "messages": 9}}
    assert [one.share for one in stream_fillings("TASKS", info)] == [0.01, 0.9]
    (account,) = account_fillings({"storage": 30, "limits": {"max_storage": 40}})
    assert (account.share, account.reason) == (0.75, "AccountFull")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1536, "1.5 KiB"), (64 * MIB, "64 MiB"), (1 << 50, "1.02e+03 TiB")]
)
def test_sizes_as_people_read_them(size: int, text: str) -> None:
    assert size_text(size) == text
