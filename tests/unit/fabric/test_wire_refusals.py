"""What the wire refuses, and how it says so: a table of malformed frames, and values that must not be sent."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard

from tests.support.fabric.wire_frames import as_tree, framed
from tests.support.fabric.wire_specimens import (
    empty,
    lease,
    row_of_a_forest,
    short_trajectory,
    task,
    trajectory,
)
from trimtab.fabric.wire.envelope import CHECKSUM, FLAG_ZSTD, HEAD, MAGIC, checksum, decode, encode
from trimtab.fabric.wire.errors import InvalidFieldError, OversizeError, WireError
from trimtab.fabric.wire.lease import BatchRequest
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.purpose import Purpose
from trimtab.fabric.wire.spans import Producer, Span
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Failed, Finish, Scored, Trajectory, TurnReward
from trimtab.fabric.wire.weights import WeightPointer


def reframed(frame: bytes, **fields: int) -> bytes:
    """The frame with fields of its head changed and the checksum made to fit."""
    names = ("kind", "major", "minor", "flags", "stored", "length")
    values = dict(zip(names, HEAD.unpack_from(frame)[1:], strict=True)) | fields
    head = HEAD.pack(MAGIC, *values.values())
    return head + CHECKSUM.pack(checksum(head, frame[24:])) + frame[24:]


TASK = encode(task())
BODY = msgspec.msgpack.encode(as_tree(task()))
NIL_BOMB = zstandard.compress(b"\x00" * (1 << 30))
UNDECLARED = zstandard.ZstdCompressor(write_content_size=False).compress(BODY)
LYING = bytearray(zstandard.compress(b"\x00" * 100_000))
LYING[5] ^= 0xFF  # the content size of the zstd frame

FRAMES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "truncated"),
    "half a magic": (b"TR", "truncated"),
    "someone else's magic": (b"PK\x03\x04" + TASK[4:], "bad_magic"),
    "the magic alone": (b"TRIM", "truncated"),
    "half a head": (TASK[:20], "truncated"),
    "another kind": (encode(lease()), "wrong_kind"),
    "a kind nobody has": (reframed(TASK, kind=250), "wrong_kind"),
    "a newer major version": (reframed(TASK, major=2), "unsupported_version"),
    "major version zero": (reframed(TASK, major=0), "unsupported_version"),
    "an unknown flag": (reframed(TASK, flags=0x80), "unsupported_version"),
    "one byte short": (TASK[:-1], "truncated"),
    "one byte long": (TASK + b"\0", "trailing_bytes"),
    "two frames": (TASK + TASK, "trailing_bytes"),
    "a flipped bit in the body": (TASK[:-1] + bytes([TASK[-1] ^ 1]), "checksum_mismatch"),
    "a flipped bit in the minor version": (TASK[:6] + b"\x07" + TASK[7:], "checksum_mismatch"),
    "a huge declared body": (reframed(TASK, length=2**32 - 1), "oversize"),
    "a huge declared frame": (reframed(TASK, stored=2**32 - 1), "oversize"),
    "a wrong declared body": (framed(Task, BODY, length=len(BODY) + 1), "malformed"),
    "a zstd bomb that says so": (framed(Task, NIL_BOMB, flags=FLAG_ZSTD, length=1 << 30), "oversize"),
    "a zstd bomb that lies outside": (framed(Task, NIL_BOMB, flags=FLAG_ZSTD, length=100), "malformed"),
    "a zstd bomb that lies inside": (framed(Task, bytes(LYING), flags=FLAG_ZSTD, length=100_000), "malformed"),
    "zstd of unknown size": (framed(Task, UNDECLARED, flags=FLAG_ZSTD, length=len(BODY)), "malformed"),
    "zstd and more": (
        framed(Task, zstandard.compress(BODY) + b"x", flags=FLAG_ZSTD, length=len(BODY)),
        "malformed",
    ),
    "two zstd frames": (
        framed(Task, zstandard.compress(BODY) * 2, flags=FLAG_ZSTD, length=len(BODY)),
        "malformed",
    ),
    "no zstd at all": (framed(Task, BODY, flags=FLAG_ZSTD), "malformed"),
    "an empty body": (framed(Task, b""), "malformed"),
    "a body that ends early": (framed(Task, BODY[:-1]), "malformed"),
    "a body and more": (framed(Task, BODY + b"\xc0"), "malformed"),
    "a list": (framed(Task, b"\x90"), "invalid_field"),
    "a list of four billion": (framed(Task, b"\xdd\xff\xff\xff\xff"), "malformed"),
    "a map of four billion": (framed(Task, b"\xdf\xff\xff\xff\xff"), "malformed"),
    "a string of four billion": (framed(Task, b"\xdb\xff\xff\xff\xff"), "malformed"),
    "bytes that are not text": (framed(Task, b"\x81\xa7task_id\xa2\xff\xff"), "malformed"),
    "a byte MessagePack does not use": (framed(Task, b"\xc1"), "malformed"),
    "a hundred thousand nested lists": (framed(Task, b"\x91" * 100_000), "too_deep"),
}


@pytest.mark.parametrize("case", FRAMES)
def test_a_malformed_frame_is_refused_with_its_reason(case: str) -> None:
    frame, reason = FRAMES[case]
    with pytest.raises(WireError) as refused:
        decode(frame, Task)
    assert refused.value.reason == reason, str(refused.value)


def _deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


def _set(*path: str | int, to: Any) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        for key in path[:-1]:
            tree = tree[key]
        tree[path[-1]] = to

    return change


PACKED = as_tree(short_trajectory())["token_ids"]
PLANES = as_tree(trajectory())["token_ids"]
VALUES: dict[str, tuple[Message, Callable[[Any], None], str, str]] = {
    "a number for a name": (task(), _set("job", to=3), "invalid_field", "$.job"),
    "an empty name": (task(), _set("job", to=""), "invalid_field", "$.job"),
    "an overlong name": (task(), _set("job", to="j" * 254), "invalid_field", "$.job"),
    "an id with a line break": (task(), _set("task_id", to="a\nb"), "invalid_field", "$.task_id"),
    "an id that ends in a line break": (task(), _set("task_id", to="a\n"), "invalid_field", "$.task_id"),
    "an id outside ASCII": (task(), _set("task_id", to="tâche"), "invalid_field", "$.task_id"),
    "a negative seed": (task(), _set("seed", to=-1), "invalid_field", "$.seed"),
    "a group of none": (task(), _set("group_size", to=0), "invalid_field", "$.group_size"),
    "milliseconds": (task(), _set("created_at", to=1.7e12), "invalid_field", "$.created_at"),
    "a deadline before the start": (task(), _set("deadline", to=1.0), "invalid_field", "$.deadline"),
    "a minimum above the target": (
        task(),
        _set("minimum_versions", to={"solver": 9}),
        "invalid_field",
        "$.minimum_versions",
    ),
    "an unknown purpose": (task(), _set("purpose", to="fun"), "invalid_field", "$.purpose"),
    "an evaluation of nothing": (task(), _set("purpose", to="evaluation"), "invalid_field", "$.benchmark"),
    "a prompt with a date": (
        task(),
        _set("prompt", to={"at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)}),
        "invalid_field",
        "$.prompt",
    ),
    "a prompt with a number as key": (task(), _set("prompt", to={"a": {1: 2}}), "invalid_field", "$.prompt"),
    "a deep prompt": (task(), _set("prompt", to=_deep(30)), "too_deep", "prompt"),
    "a deep unknown field": (task(), _set("zz", to=_deep(30)), "too_deep", "newer"),
    "a thousand unknown fields": (
        task(),
        lambda tree: tree.update({f"zz{n}": n for n in range(1000)}),
        "invalid_field",
        "$.newer",
    ),
    "a NaN reward": (trajectory(), _set("outcome", "reward", to=float("nan")), "invalid_field", "$.outcome.reward"),
    "an infinite reward": (
        trajectory(),
        _set("outcome", "reward", to=float("inf")),
        "invalid_field",
        "$.outcome.reward",
    ),
    "no reward": (trajectory(), lambda tree: tree["outcome"].pop("reward"), "invalid_field", "$.outcome"),
    "an abort with a reward": (
        trajectory(),
        _set("outcome", "finish", to="abort"),
        "invalid_field",
        "$.outcome.finish",
    ),
    "an unknown status": (trajectory(), _set("outcome", "status", to="maybe"), "invalid_field", "$.outcome.status"),
    "spans that stop short": (trajectory(), lambda tree: tree["spans"].pop(0), "invalid_field", "$.spans"),
    "an empty span": (trajectory(), _set("spans", 0, 0, to=0), "invalid_field", "$.spans[0][0]"),
    "a negative span": (trajectory(), _set("spans", 0, 0, to=-300), "invalid_field", "$.spans[0][0]"),
    "a span of an unknown producer": (trajectory(), _set("spans", 0, 1, to=9), "invalid_field", "$.spans[0][1]"),
    "a prompt with a version": (trajectory(), _set("spans", 0, 2, to=7), "invalid_field", "$.spans[0].version"),
    "model tokens without a version": (
        trajectory(),
        _set("spans", 1, to=[700, 1]),
        "invalid_field",
        "$.spans[1].version",
    ),
    "a span with a fourth value": (
        trajectory(),
        lambda tree: tree["spans"][0].append(1),
        "invalid_field",
        "$.spans[0]",
    ),
    "too many spans": (
        trajectory(),
        _set("spans", to=[[1, 0]] * 70_000),
        "invalid_field",
        "$.spans",
    ),
    "ids as a list": (trajectory(), _set("token_ids", to=[1, 2]), "invalid_field", "$.token_ids"),
    "ids that end in their head": (trajectory(), _set("token_ids", to=b"\1\0"), "malformed", "token_ids"),
    "ids that stop short": (short_trajectory(), _set("token_ids", to=PACKED[:-1]), "malformed", "token_ids"),
    "ids in planes that stop short": (trajectory(), _set("token_ids", to=PLANES[:-1]), "malformed", "token_ids"),
    "ids in an unknown layout": (
        short_trajectory(),
        _set("token_ids", to=PACKED[:4] + b"\7" + PACKED[5:]),
        "malformed",
        "token_ids",
    ),
    "four billion ids": (
        short_trajectory(),
        _set("token_ids", to=b"\xff" * 4 + PACKED[4:]),
        "oversize",
        "token_ids",
    ),
    "negative ids": (
        short_trajectory(),
        _set("token_ids", to=PACKED[:-1] + b"\xff"),
        "invalid_field",
        "$.token_ids",
    ),
    "a NaN logprob": (
        short_trajectory(),
        _set("logprobs", to=b"\1\0\0\0\0\0\0\0" + np.float32("nan").tobytes()),
        "invalid_field",
        "$.logprobs",
    ),
    "a logprob above zero": (
        short_trajectory(),
        _set("logprobs", to=b"\1\0\0\0\0\0\0\0" + np.float32(0.5).tobytes()),
        "invalid_field",
        "$.logprobs",
    ),
    "too few logprobs": (
        short_trajectory(),
        _set("logprobs", to=b"\0\0\0\0\0\0\0\0"),
        "invalid_field",
        "$.logprobs",
    ),
    "a sample of no group": (lease(), _set("samples", 1, "group", to=4), "invalid_field", "$.samples[1].group"),
    "a sample of no episode": (lease(), _set("samples", 1, "episode", to=2), "invalid_field", "$.samples[1].episode"),
    "a sample without reward": (
        lease(),
        lambda tree: tree["samples"][0].pop("reward"),
        "invalid_field",
        "$.samples[0]",
    ),
    "a sample twice": (lease(), lambda tree: tree["samples"].append(tree["samples"][0]), "invalid_field", "$.samples"),
    "a rank beyond the world": (lease(), _set("rank", to=2), "invalid_field", "$.rank"),
}


@pytest.mark.parametrize("case", VALUES)
def test_an_invalid_value_is_refused_by_name(case: str) -> None:
    message, change, reason, field = VALUES[case]
    tree = as_tree(message)
    change(tree)
    with pytest.raises(WireError) as refused:
        decode(framed(type(message), msgspec.msgpack.encode(tree)), type(message))
    assert (refused.value.reason, refused.value.field) == (reason, field), str(refused.value)


def test_a_failure_cannot_carry_a_reward() -> None:
    with pytest.raises(TypeError):
        Failed(error="engine.dead", reward=0.0)  # type: ignore[call-arg]
    tree = as_tree(short_trajectory(outcome=Failed(error="engine.dead")))
    tree["outcome"]["reward"] = 0.0
    received = decode(framed(Trajectory, msgspec.msgpack.encode(tree)), Trajectory)
    assert isinstance(received.outcome, Failed)
    assert not hasattr(received.outcome, "reward")


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: trajectory(outcome=Scored(reward=float("nan"), finish=Finish.STOP)), "$.outcome.reward"),
        (lambda: trajectory(outcome=Scored(reward=np.float32(1.0), finish=Finish.STOP)), "$"),  # type: ignore[arg-type]
        (lambda: trajectory(worker=""), "$.worker"),
        (lambda: task(prompt={"x": 2**70}), "$"),
        (lambda: task(prompt={"x": "\ud800"}), "$"),
        (lambda: task(sampling=_deep(30)), "sampling"),
        (lambda: task(prompt={"x": object()}), "prompt"),
        (lambda: task(attempt="first"), "$.attempt"),
        (lambda: trajectory(token_ids=np.zeros(1500, dtype=np.int64)), "token_ids"),
        (lambda: trajectory(token_ids=np.zeros((1500, 1), dtype=np.int32)), "token_ids"),
        (lambda: trajectory(logprobs=np.full(1150, -np.inf, dtype=np.float32)), "logprobs"),
        (lambda: trajectory(spans=(Span(1500, Producer.PROMPT),)), "logprobs"),
        (
            lambda: trajectory(spans=(Span(1500, Producer.PROMPT),), logprobs=np.zeros(0, dtype=np.float32)),
            "spans",
        ),
        (lambda: trajectory(finished_at=float("nan")), "$.finished_at"),
        (lambda: trajectory(started_at=-1.0), "$.started_at"),
        (lambda: trajectory(group_index=8), "group_index"),
        (lambda: trajectory(part=1), "part"),
        (lambda: trajectory(parts=0), "parts"),
        (lambda: empty(parts=1), "parts"),
        (lambda: empty(spans=(Span(1, Producer.PROMPT),), token_ids=np.zeros(1, dtype=np.int32)), "token_ids"),
        (lambda: row_of_a_forest(parts=1025), "$.parts"),
        (lambda: row_of_a_forest(run="a b"), "$.run"),
        (lambda: row_of_a_forest(run="a.b"), "$.run"),
        (lambda: row_of_a_forest(turns=3), "turn_rewards"),
        (lambda: row_of_a_forest(turn_rewards=(TurnReward(1, 1, 0.5), TurnReward(4, 1, 0.5))), "turn_rewards"),
        (lambda: row_of_a_forest(turn_rewards=(TurnReward(4, 1, 0.5), TurnReward(4, 2, 0.5))), "turn_rewards"),
        (lambda: row_of_a_forest(reward_parts={"answer": float("inf")}), "$.reward_parts[...]"),
        (lambda: row_of_a_forest(reward_parts={f"p{number}": 1.0 for number in range(17)}), "$.reward_parts"),
        (lambda: Span(1, Producer.ECHO, 3), "version"),
        (lambda: trajectory(purpose=Purpose.TRAIN, benchmark="aime"), "benchmark"),
        (lambda: Span(1, Producer.MODEL), "version"),
        (lambda: BatchRequest(job="j", policy="p", step=0, rank=2, world_size=2), "rank"),
        (
            lambda: MemberHeartbeat(
                member_id="m", job="j", role=Role.TRAINER, pool="p", state=State.READY, started_at=0.0, sent_at=1.0
            ),
            "pool",
        ),
        (
            lambda: WeightPointer(
                job="j",
                policy="p",
                version=1,
                epoch=1,
                manifest_key="k",
                manifest_digest="sha256:" + "0" * 64,
                base_version=1,
                size_bytes=1,
                published_at=0.0,
            ),
            "base_version",
        ),
    ],
)
def test_what_a_reader_would_refuse_cannot_be_sent(build: Callable[[], Message], field: str) -> None:
    with pytest.raises(WireError) as refused:
        encode(build())
    assert refused.value.field == field, str(refused.value)


def test_an_oversize_message_cannot_be_sent() -> None:
    with pytest.raises(OversizeError):
        encode(task(prompt={"text": "x" * (9 << 20)}))


@pytest.mark.parametrize("keys", [(b"\xa2zz",), (b"\xa2zz", b"\xa2zz"), (b"\xa5newer",), (b"\xa5spans",)])
def test_a_body_that_would_become_a_hundred_times_its_size_is_refused_unread(keys: tuple[bytes, ...]) -> None:
    many = b"\xdd" + (5 << 20).to_bytes(4, "big") + b"\x80" * (5 << 20)
    last = many if len(keys) == 1 else b"\xc4\x00"
    body = bytes([0x80 + len(keys)]) + keys[0] + many + (keys[-1] + last if len(keys) > 1 else b"")
    with pytest.raises(OversizeError, match="outside arrays"):
        decode(framed(Trajectory, body), Trajectory)


def test_a_trajectory_is_compressed_only_where_its_writer_would() -> None:
    body = b"\x81\xa2zz\xdd" + (60 << 20).to_bytes(4, "big") + b"\x80" * (60 << 20)
    with pytest.raises(OversizeError, match="compressed"):
        decode(framed(Trajectory, zstandard.compress(body), flags=FLAG_ZSTD, length=len(body)), Trajectory)


def test_a_trajectory_of_a_million_tokens_passes() -> None:
    random = np.random.default_rng(1)
    count = 1 << 20
    message = trajectory(
        token_ids=random.integers(0, 150_000, count, dtype=np.int32),
        logprobs=-random.random(count, dtype=np.float32),
        spans=(Span(count, Producer.MODEL, 1),),
    )
    assert decode(encode(message), Trajectory) == message


def test_an_error_names_reason_detail_and_field() -> None:
    with pytest.raises(InvalidFieldError) as refused:
        lease(rank=2)
    assert str(refused.value) == "invalid_field: 2 in a world of 2 (at rank)"
