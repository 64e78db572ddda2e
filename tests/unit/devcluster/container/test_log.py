from __future__ import annotations

import asyncio
from pathlib import Path

from trimtab.devcluster.container.log import (
    LogOptions,
    LogWriter,
    forget_older_instances,
    instance_file,
    read_log,
    tail,
)


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


async def read(path: Path, **options: object) -> bytes:
    return b"".join([piece async for piece in read_log(path, LogOptions(**options), alive=lambda: False)])  # type: ignore[arg-type]


async def test_what_is_written_in_pieces_is_read_in_lines(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "0.log"
    log = LogWriter(path, clock=clock)
    for piece in (b"fi", b"rst\nsec", b"ond\n\n", b"\xff\xfe last"):
        log.write(piece)
        clock.now += 10
    log.close()
    whole = b"first\nsecond\n\n\xff\xfe last"
    assert await read(path) == whole
    assert await read(path, tail_lines=2) == b"\n\xff\xfe last"
    assert await read(path, tail_lines=0) == b""
    assert await read(path, since=clock.now - 25) == b"second\n\n\xff\xfe last"
    assert await read(path, limit_bytes=8) == whole[:8]
    assert (await read(path, timestamps=True, tail_lines=3)).startswith(b"2027-01-15T08:00:20.000000000Z second\n")
    assert tail(path, lines=2, limit=100) == "\n\ufffd\ufffd last"


async def test_long_lines_come_back_whole(tmp_path: Path) -> None:
    path, line = tmp_path / "0.log", b"x" * 100_000
    log = LogWriter(path, clock=Clock())
    log.write(line + b"\nnext\n")
    log.write(line[:50_000])
    log.write(line[:50_000] + b"\n")
    log.close()
    assert await read(path) == line + b"\nnext\n" + line + b"\n"


async def test_following_ends_with_the_container_and_misses_nothing(tmp_path: Path) -> None:
    path, alive = tmp_path / "0.log", [True]
    log = LogWriter(path, clock=Clock(), rotate_at_bytes=2000)
    log.write(b"0\n")

    async def write_on() -> None:
        for number in range(1, 200):
            log.write(b"%d\n" % number)
            if number % 50 == 0:
                await asyncio.sleep(0.12)
        log.close()
        alive[0] = False

    writing = asyncio.create_task(write_on())
    pieces = [piece async for piece in read_log(path, LogOptions(follow=True), alive=lambda: alive[0])]
    await writing
    assert b"".join(pieces).split() == [b"%d" % number for number in range(200)]


def test_two_instances_are_kept(tmp_path: Path) -> None:
    for number in range(4):
        instance_file(tmp_path, number).touch()
    forget_older_instances(tmp_path, restarts=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.log"]
