"""A disk is short of room until it has a good deal more, and the server beneath it is started again once."""

from __future__ import annotations

from pathlib import Path

from trimtab.embedded.disk_room import DiskRoom, RoomLimits, free_bytes


def test_a_server_is_started_again_once_when_there_is_enough_room() -> None:
    room = DiskRoom(RoomLimits(low_bytes=10, enough_bytes=20))
    told = []
    for free in (100, 10, 9, 0, 12, 19, 20, 15, 9, 25):
        room = room.seen(free)
        told.append((room.is_short, room.is_mended))
    short, mended, fine = (True, False), (False, True), (False, False)
    assert told == [fine, fine, short, short, short, short, mended, fine, short, mended]


def test_it_reads_the_disk(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
