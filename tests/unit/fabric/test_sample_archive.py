"""What is put into the archive is what comes out of it, and what else lies there is refused."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
import zstandard

from tests.support.fabric.wire_specimens import short_trajectory, trajectory
from trimtab.fabric.sample_archive import (
    ArchiveDamaged,
    ArchivedRow,
    ArchivePlace,
    parse_key,
    part_key,
    read_part,
    written_parts,
)
from trimtab.fabric.wire.trajectory import Trajectory

ROWS = [
    ArchivedRow(step=3, sequence=7, row=trajectory()),
    ArchivedRow(step=3, sequence=9, row=short_trajectory()),
]


def without_logprobs(row: Trajectory) -> Trajectory:
    return msgspec.structs.replace(row, logprobs=np.zeros_like(row.logprobs))


def test_rows_come_back_with_logprobs_to_six_digits() -> None:
    (body,) = written_parts(ROWS)
    for back, put in zip(read_part(body), ROWS, strict=True):
        assert (back.step, back.sequence) == (put.step, put.sequence)
        assert without_logprobs(back.row) == without_logprobs(put.row)
        np.testing.assert_allclose(back.row.logprobs, put.row.logprobs, atol=6e-7, rtol=0)


def test_other_programs_read_it_as_json_lines() -> None:
    (body,) = written_parts(ROWS)
    lines = [json.loads(line) for line in zstandard.ZstdDecompressor().decompress(body).splitlines()]
    assert [line["row"]["token_ids"] for line in lines] == [one.row.token_ids.tolist() for one in ROWS]
    assert lines[0]["row"]["outcome"] == {"status": "scored", "reward": 0.75, "finish": "stop"}


def test_a_large_step_is_cut_into_parts() -> None:
    parts = [*written_parts(ROWS * 3, max_bytes=1)]
    assert len(parts) == 6
    assert [row.sequence for part in parts for row in read_part(part)] == [7, 9] * 3


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"junk",
        next(written_parts(ROWS))[:-20],
        zstandard.compress(b'{"step":1,"sequence":2,"row":{"token_ids":"no"}}\n'),
        zstandard.compress(b'{"step":1,"sequence":2,"row":' + b"[" * 100_000),
        zstandard.compress(msgspec.json.encode({"step": 1, "sequence": 2, "row": {"job": "\x00"}})),
    ],
    ids=["empty", "junk", "cut", "no array", "deep", "no row"],
)
def test_what_no_trainer_wrote_is_refused(body: bytes) -> None:
    with pytest.raises(ArchiveDamaged):
        list(read_part(body))


def test_a_key_says_whose_step_it_is() -> None:
    key = part_key("solver", step=41, rank=2, part=0)
    assert key == "archive/solver/00000041/0002-000.jsonl.zst"
    assert parse_key(key) == ArchivePlace(policy="solver", step=41)
    for other in ("archive/solver/41/2.jsonl.zst", "claims/solver/0", key + ".tmp"):
        assert parse_key(other) is None
