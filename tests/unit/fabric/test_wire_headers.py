"""The headers of a trajectory say what its payload says, in ASCII, and nothing malformed passes for one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.support.fabric.wire_specimens import short_trajectory, trajectory
from tests.support.fabric.wire_strategies import trajectories
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.header import MESSAGE_ID, TRAJECTORY, TrajectoryHeader, headers, parse_headers
from trimtab.fabric.wire.trajectory import Failed, Finish, Scored, Trajectory


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(trajectories())
def test_headers_and_payload_agree(message: Trajectory) -> None:
    sent = headers(message)
    for name, value in sent.items():
        assert (name + value).isascii()
        assert (name + value).isprintable()
    trajectory_id, header = parse_headers(sent)
    assert trajectory_id == message.trajectory_id
    received = decode(encode(message), Trajectory)
    assert header == TrajectoryHeader.of(received)


def test_what_dataflow_decides_on_is_there() -> None:
    _, header = parse_headers(headers(trajectory()))
    assert (header.policy, header.group_id, header.group_index, header.group_size) == ("solver", "t-42/solver", 3, 8)
    assert (header.reward, header.finish, header.error) == (0.75, "stop", None)
    assert (header.tokens, header.trained_tokens) == (1500, 1150)
    assert (header.oldest_version, header.newest_version) == (7, 8)


def test_a_failure_has_a_kind_and_no_reward() -> None:
    _, header = parse_headers(headers(short_trajectory(outcome=Failed(error="engine.dead", retryable=False))))
    assert (header.reward, header.finish, header.error, header.retryable) == (None, None, "engine.dead", False)


def test_headers_are_small() -> None:
    assert sum(len(name) + len(value) for name, value in headers(trajectory()).items()) < 450


def test_fields_that_a_newer_writer_appended_are_ignored() -> None:
    sent = headers(trajectory())
    newer = sent | {TRAJECTORY: json.dumps([*json.loads(sent[TRAJECTORY]), "more", {"a": 1}])}
    newer[TRAJECTORY] = newer[TRAJECTORY].replace("[1, ", "[1,", 1)
    assert parse_headers(newer) == parse_headers(sent)


def _changed(field: str, value: Any) -> dict[str, str]:
    sent = headers(trajectory())
    values = json.loads(sent[TRAJECTORY])
    values[TrajectoryHeader.__struct_fields__.index(field)] = value
    return sent | {TRAJECTORY: json.dumps(values, separators=(",", ":"))}


def _without(name: str) -> dict[str, str]:
    return {key: value for key, value in headers(trajectory()).items() if key != name}


MALFORMED: dict[str, tuple[dict[str, str], str]] = {
    "none": ({}, "truncated"),
    "no id": (_without(MESSAGE_ID), "truncated"),
    "no trajectory": (_without(TRAJECTORY), "truncated"),
    "an id with a space": (headers(trajectory()) | {MESSAGE_ID: "a b"}, "invalid_field"),
    "an empty id": (headers(trajectory()) | {MESSAGE_ID: ""}, "invalid_field"),
    "an overlong id": (headers(trajectory()) | {MESSAGE_ID: "x" * 201}, "invalid_field"),
    "not JSON": (headers(trajectory()) | {TRAJECTORY: "[1,"}, "malformed"),
    "an object": (headers(trajectory()) | {TRAJECTORY: "{}"}, "unsupported_version"),
    "a newer version": (_changed("header_version", 2), "unsupported_version"),
    "half a version": (_changed("header_version", 1.5), "unsupported_version"),
    "too few fields": (headers(trajectory()) | {TRAJECTORY: "[1,2]"}, "invalid_field"),
    "oversize": (headers(trajectory()) | {TRAJECTORY: "[1," + " " * 9000 + "]"}, "oversize"),
    "deep": (headers(trajectory()) | {TRAJECTORY: "[1," + "[" * 8000}, "invalid_field"),
    "surrogates": (headers(trajectory()) | {TRAJECTORY: '[1,"\ud800"]'}, "malformed"),
    "a text reward": (_changed("reward", "1"), "invalid_field"),
    "a NaN reward": (_changed("reward", float("nan")), "malformed"),
    "no reward and no error": (_changed("reward", None), "invalid_field"),
    "an error with a reward": (_changed("error", "engine.dead"), "invalid_field"),
    "an unknown finish": (_changed("finish", "abort"), "invalid_field"),
    "negative tokens": (_changed("response_tokens", -1), "invalid_field"),
    "more trained than written": (_changed("trained_tokens", 1201), "invalid_field"),
    "trained without version": (_changed("oldest_version", None), "invalid_field"),
    "no newest version": (_changed("newest_version", None), "invalid_field"),
    "newest before oldest": (_changed("newest_version", 6), "invalid_field"),
    "index beyond group": (_changed("group_index", 8), "invalid_field"),
    "part beyond parts": (_changed("part", 1), "invalid_field"),
    "training on a benchmark": (_changed("benchmark", "aime"), "invalid_field"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_headers_are_refused_with_their_reason(case: str) -> None:
    received, reason = MALFORMED[case]
    with pytest.raises(WireError) as refused:
        parse_headers(received)
    assert refused.value.reason == reason, str(refused.value)


def test_headers_that_would_be_refused_are_not_sent() -> None:
    with pytest.raises(WireError):
        headers(short_trajectory(worker=""))
    with pytest.raises(WireError):
        headers(short_trajectory(prompt_id="\ud800"))
    with pytest.raises(WireError):
        headers(short_trajectory(outcome=Scored(reward=np.float32(1.0), finish=Finish.STOP)))  # type: ignore[arg-type]
    evil = short_trajectory(worker="a\r\nNats-Msg-Id: forged", prompt_id="✓\n")
    sent = headers(evil)
    assert all("\n" not in value and "\r" not in value for value in sent.values())
    assert parse_headers(sent)[1].worker == evil.worker
    assert np.array_equal(decode(encode(evil), Trajectory).token_ids, evil.token_ids)
