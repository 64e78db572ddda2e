"""Payloads are fair only if they have the size they claim, and useful only if a rank can tell which row it got."""

from __future__ import annotations

import pytest

from benchmarks.trajectories.payloads import GROUP_SIZE, Writer, number_of, tokens_for
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.header import TrajectoryHeader, parse_headers
from trimtab.fabric.wire.trajectory import Trajectory

BATCH = 64


@pytest.mark.parametrize("size", [2 << 10, 32 << 10, 512 << 10])
def test_a_payload_is_as_large_on_the_wire_as_was_asked_for(size: int) -> None:
    writer = Writer("job", tokens=tokens_for(size), batch_size=BATCH, seed=1)
    assert len(writer.frame(12).payload) == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize("number", [0, 7, 8, 40_000, 999_999])
def test_a_row_says_its_number_after_its_way_over_the_wire(number: int) -> None:
    frame = Writer("job", tokens=64, batch_size=BATCH, seed=1).frame(number)
    assert number_of(decode(frame.payload, Trajectory).token_ids) == number


def test_header_and_payload_of_a_frame_speak_of_the_same_trajectory() -> None:
    frame = Writer("job", tokens=64, batch_size=BATCH, seed=1).frame(100)
    trajectory = decode(frame.payload, Trajectory)
    assert parse_headers(frame.headers) == (frame.trajectory_id, TrajectoryHeader.of(trajectory))


def test_eight_rows_in_succession_make_a_group_that_belongs_to_one_step() -> None:
    writer = Writer("job", tokens=64, batch_size=BATCH, seed=1)
    rows = [writer.trajectory(number) for number in range(BATCH, BATCH + GROUP_SIZE)]
    assert len({row.group_id for row in rows}) == 1
    assert [row.group_index for row in rows] == list(range(GROUP_SIZE))
    assert {row.oldest_version for row in rows} == {1}


def test_a_trajectory_without_a_response_is_refused() -> None:
    with pytest.raises(ValueError, match="8 tokens"):
        Writer("job", tokens=8, batch_size=BATCH, seed=1)
