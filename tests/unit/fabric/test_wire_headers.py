"""The headers of a trajectory say what its payload says, in ASCII, and nothing malformed passes for one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.support.fabric.wire_specimens import empty, row_of_a_forest, short_trajectory, trajectory
from tests.support.fabric.wire_strategies import trajectories
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.header import MESSAGE_ID, TRAJECTORY, TrajectoryHeader, headers, parse_headers
from trimtab.fabric.wire.spans import Producer, Span
from trimtab.fabric.wire.trajectory import MAX_TURNS, Failed, Finish, Scored, Trajectory, TurnReward


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


def test_a_row_of_a_forest_says_which_it_is() -> None:
    trajectory_id, header = parse_headers(headers(row_of_a_forest()))
    assert trajectory_id == "job-1.t-42.3.1"
    assert (header.part, header.parts, header.run) == (1, 3, "6f1ed002")
    assert (header.tokens, header.prompt_tokens, header.trained_tokens) == (6, 1, 3)
    assert header.turn_rewards == (TurnReward(1, 1, 0.5), TurnReward(4, 2, -1.0))
    assert header.reward_parts == {"answer": 1.0, "format": -0.25}


def test_an_episode_without_rows_has_neither_reward_nor_error() -> None:
    _, header = parse_headers(headers(empty()))
    assert (header.parts, header.reward, header.finish, header.error, header.tokens) == (0, None, None, None, 0)


def test_two_runs_of_a_row_are_two_messages() -> None:
    first, second = (headers(row_of_a_forest(run=run)) for run in ("a", "b"))
    assert first[MESSAGE_ID] != second[MESSAGE_ID]
    assert parse_headers(first)[0] == parse_headers(second)[0]


def test_a_thousand_turns_fit_what_jetstream_takes() -> None:
    """It refuses headers of 64 KiB."""
    rewards = tuple(TurnReward(10_000 + number, 100, -0.123456789012345678) for number in range(MAX_TURNS))
    tokens = 100 * MAX_TURNS
    row = trajectory(
        token_ids=np.zeros(tokens, dtype=np.int32),
        logprobs=np.zeros(tokens, dtype=np.float32),
        spans=(Span(tokens, Producer.MODEL, 3),),
        turns=MAX_TURNS,
        turn_rewards=rewards,
        reward_parts={f"part-{number:058}": -0.123456789012345678 for number in range(16)},
    )
    sent = headers(row)
    assert parse_headers(sent)[1].turn_rewards == rewards
    assert sum(len(name) + len(value) + 4 for name, value in sent.items()) < 65_000


def test_fields_that_a_newer_writer_appended_are_ignored() -> None:
    sent = headers(trajectory())
    newer = sent | {TRAJECTORY: json.dumps([*json.loads(sent[TRAJECTORY]), "", [], {}, "more", {"a": 1}])}
    newer[TRAJECTORY] = newer[TRAJECTORY].replace("[1, ", "[1,", 1)
    assert parse_headers(newer) == parse_headers(sent)


def _changed(field: str, value: Any) -> dict[str, str]:
    sent = headers(trajectory())
    values = [*json.loads(sent[TRAJECTORY]), "", [], {}]
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
    "oversize": (headers(trajectory()) | {TRAJECTORY: "[1," + " " * 60_000 + "]"}, "oversize"),
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
    "more parts than an episode may have": (_changed("parts", 1025), "invalid_field"),
    "a reward without rows": (_changed("parts", 0), "invalid_field"),
    "another run than the id's": (_changed("run", "1"), "invalid_field"),
    "an id without its run": (headers(trajectory()) | {MESSAGE_ID: "job-1.t-42.3"}, "invalid_field"),
    "turns of other tokens": (_changed("turn_rewards", [[0, 1, 0.5]]), "invalid_field"),
    "a part of a reward that is NaN": (_changed("reward_parts", {"answer": float("nan")}), "malformed"),
    "a part of a reward without a name": (_changed("reward_parts", {"": 1.0}), "invalid_field"),
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
