"""A column says of which rows it is and what the dataflow must know, and nothing malformed passes for one."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fabric.wire_specimens import ROWS, column, column_header, stage_task
from tests.support.fabric.wire_strategies import finite, names, runs, slugs, times, tokens
from trimtab.fabric.wire.column import (
    COLUMN,
    Column,
    ColumnHeader,
    column_headers,
    parse_column_headers,
    rows_digest,
)
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import InvalidFieldError, WireError
from trimtab.fabric.wire.header import MESSAGE_ID
from trimtab.fabric.wire.stage import ColumnReference, StageRow, StageTask

VERSIONS = st.none() | st.tuples(st.integers(0, 2**53), st.integers(0, 2**53)).map(sorted)


@st.composite
def headers_of_columns(draw: st.DrawFn) -> ColumnHeader:
    rows = draw(st.lists(tokens, min_size=1, max_size=4, unique=True))
    many: dict[str, Any] = {"min_size": len(rows), "max_size": len(rows)}
    failed = draw(st.booleans())
    results: dict[str, Any] = {
        "rewards": st.none() | st.lists(finite, **many).map(tuple),
        "turn_rewards": st.none() | st.lists(st.lists(finite, max_size=3).map(tuple), **many).map(tuple),
        "keep": st.none() | st.lists(st.booleans(), **many).map(tuple),
    }
    versions = draw(VERSIONS)
    return column_header(
        job=draw(names),
        policy=draw(names),
        stage=draw(tokens),
        group_id=draw(tokens),
        run=draw(runs),
        rows_digest=rows_digest(rows),
        error=draw(slugs) if failed else None,
        oldest_version=None if versions is None else versions[0],
        newest_version=None if versions is None else versions[1],
        worker=draw(names),
        started_at=draw(times),
        **{name: None if failed else draw(values) for name, values in results.items()},
    )


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(headers_of_columns())
def test_any_header_survives_in_printable_ascii(header: ColumnHeader) -> None:
    sent = column_headers(header)
    for name, value in sent.items():
        assert (name + value).isascii()
        assert (name + value).isprintable()
    assert parse_column_headers(sent) == header


def test_a_row_gets_its_own_numbers() -> None:
    values = np.arange(6, dtype=np.float32)
    received = decode(encode(column(lengths=(3, 1, 2), values=values)), Column)
    assert {row: numbers.tolist() for row, numbers in received.by_row.items()} == {
        ROWS[0]: [0.0, 1.0, 2.0],
        ROWS[1]: [3.0],
        ROWS[2]: [4.0, 5.0],
    }


def test_numbers_arrive_bit_for_bit() -> None:
    sent = column()
    received = decode(encode(sent), Column)
    assert received.values.tobytes() == sent.values.tobytes()
    assert not received.values.flags.writeable


def test_other_rows_and_another_order_have_another_digest() -> None:
    assert rows_digest(ROWS) == rows_digest(list(ROWS))
    assert len({rows_digest(ROWS), rows_digest(ROWS[::-1]), rows_digest(ROWS[:2]), rows_digest(["".join(ROWS)])}) == 4


def test_two_runs_of_a_stage_are_two_messages() -> None:
    first, second = (column_headers(column_header(run=run)) for run in ("a", "b"))
    assert first[MESSAGE_ID] != second[MESSAGE_ID]
    assert first[MESSAGE_ID] == column(run="a", stage="judge").message_id


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"lengths": (700, 450)}, "lengths"),
        ({"lengths": (700, 449, 0)}, "values"),
        ({"trajectory_ids": (ROWS[0], ROWS[0], ROWS[1])}, "trajectory_ids"),
        ({"values": np.zeros(1150, dtype=np.float64)}, "values"),
        ({"values": np.full(1150, np.nan, dtype=np.float32)}, "values"),
        ({"values": np.full(1150, np.inf, dtype=np.float32)}, "values"),
        ({"values": np.zeros((1150, 1), dtype=np.float32)}, "values"),
    ],
)
def test_a_column_that_contradicts_itself_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        column(**changes)
    assert refused.value.field == field


def test_a_task_that_lists_a_row_twice_is_refused() -> None:
    row = StageRow(sequence=1, trajectory_id="t0.solver.0.0", reward=0.0)
    with pytest.raises(InvalidFieldError, match="twice"):
        stage_task(rows=(row, msgspec.structs.replace(row, sequence=2)))
    with pytest.raises(InvalidFieldError):
        stage_task(prompt={"made of": object()})
    with pytest.raises(WireError):
        encode(stage_task(rows=()))
    with pytest.raises(WireError):
        encode(stage_task(columns=(ColumnReference(stage="x", sequence=0),)))
    assert decode(encode(stage_task()), StageTask).task_id == "t-42/solver.judge"


def _changed(field: str, value: Any) -> dict[str, str]:
    sent = column_headers(column_header())
    values = json.loads(sent[COLUMN])
    values[ColumnHeader.__struct_fields__.index(field)] = value
    return sent | {COLUMN: json.dumps(values, separators=(",", ":"))}


GOOD = column_headers(column_header())
MALFORMED: dict[str, tuple[dict[str, str], str]] = {
    "none": ({}, "truncated"),
    "no id": ({COLUMN: GOOD[COLUMN]}, "truncated"),
    "no column": ({MESSAGE_ID: GOOD[MESSAGE_ID]}, "truncated"),
    "another run's id": (GOOD | {MESSAGE_ID: "t-42/solver.judge.other"}, "invalid_field"),
    "another group's id": (GOOD | {MESSAGE_ID: "t-43/solver.judge.6f1ed002"}, "invalid_field"),
    "not JSON": (GOOD | {COLUMN: "[1,"}, "malformed"),
    "an object": (GOOD | {COLUMN: "{}"}, "unsupported_version"),
    "a newer version": (_changed("header_version", 2), "unsupported_version"),
    "too few fields": (GOOD | {COLUMN: "[1,2]"}, "invalid_field"),
    "oversize": (GOOD | {COLUMN: "[1," + " " * 60_000 + "]"}, "oversize"),
    "deep": (GOOD | {COLUMN: "[1," + "[" * 8000}, "invalid_field"),
    "surrogates": (GOOD | {COLUMN: '[1,"\ud800"]'}, "malformed"),
    "a NaN reward": (_changed("rewards", [float("nan")]), "malformed"),
    "a text reward": (_changed("rewards", ["1"]), "invalid_field"),
    "an error and a reward": (_changed("error", "engine.dead"), "invalid_field"),
    "an error that is no word": (_changed("error", "Engine dead!"), "invalid_field"),
    "a digest of something else": (_changed("rows_digest", "sha256:00"), "invalid_field"),
    "one version": (_changed("newest_version", None), "invalid_field"),
    "newest before oldest": (_changed("newest_version", 6), "invalid_field"),
    "a run with a dot": (_changed("run", "a.b"), "invalid_field"),
    "a number for a choice": (_changed("keep", [1, 0, 1]), "invalid_field"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_headers_are_refused_with_their_reason(case: str) -> None:
    received, reason = MALFORMED[case]
    with pytest.raises(WireError) as refused:
        parse_column_headers(received)
    assert refused.value.reason == reason, str(refused.value)


def test_fields_that_a_newer_writer_appended_are_ignored() -> None:
    newer = GOOD | {COLUMN: GOOD[COLUMN][:-1] + ',"more",{"a":1}]'}
    assert parse_column_headers(newer) == column_header()


def test_headers_that_would_be_refused_are_not_sent() -> None:
    for changes in ({"worker": ""}, {"message": "x" * 5000}, {"rewards": tuple([0.123456789012345] * 5000)}):
        with pytest.raises(WireError):
            column_headers(column_header(**changes))
    evil = column_headers(column_header(worker="a\r\nNats-Msg-Id: forged"))
    assert all("\n" not in value and "\r" not in value for value in evil.values())
