"""A hundred thousand hostile inputs over every decoder: each is refused with a WireError, or is a valid message.

Damage without a new checksum must always be refused. Damage with one reaches the body's own checks: what they let pass
must encode again, and encode to what it was read from.
"""

from __future__ import annotations

import copy
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import zstandard

from tests.support.fabric.wire_frames import as_tree, body_of, framed
from tests.support.fabric.wire_specimens import SPECIMENS, column_header, short_trajectory, trajectory
from trimtab.fabric.wire.column import COLUMN, column_headers, parse_column_headers
from trimtab.fabric.wire.envelope import FLAG_ZSTD, decode, encode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.header import MESSAGE_ID, TRAJECTORY, headers, parse_headers
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.trajectory import Failed, Trajectory

DAMAGED_FRAMES = 40_000
HOSTILE_BODIES = 40_000
HOSTILE_TREES = 20_000
DAMAGED_HEADERS = 20_000

# What parsers trip over: extreme lengths and numbers of MessagePack, zstd's magic, text that is no text.
HOSTILE = (
    *(bytes([code]) + b"\xff" * size for code in range(0xC0, 0xE0) for size in (1, 4, 8)),
    *(bytes([code]) for code in (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xE0, 0xFF)),
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    b"\x91" * 30_000,
    b"\x81\xa1a" * 30_000,
    b"\x28\xb5\x2f\xfd",
    zstandard.compress(b"\0" * (1 << 20)),
    b"\xa2\xff\xfe",
)

Damage = Callable[[random.Random, bytes, bytes], bytes]


def _flip(rng: random.Random, data: bytes, _: bytes) -> bytes:
    damaged = bytearray(data)
    for _flips in range(rng.choice((1, 1, 1, 2, 8))):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _truncate(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def _splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]


def _overwrite(rng: random.Random, data: bytes, _: bytes) -> bytes:
    hostile = rng.choice(HOSTILE)
    at = rng.randrange(len(data))
    return data[:at] + hostile + data[at + len(hostile) :]


def _insert(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(HOSTILE) + data[at:]


def _noise(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return data[: rng.choice((0, 4, 8, 24))] + rng.randbytes(rng.randrange(1, 200))


DAMAGES: tuple[Damage, ...] = (_flip, _flip, _truncate, _splice, _overwrite, _insert, _noise)


def _refused(frame: bytes, cls: type[Message], outcomes: Counter[str]) -> Message | None:
    try:
        message = decode(frame, cls)
    except WireError as error:
        outcomes[error.reason] += 1
        return None
    outcomes["accepted"] += 1
    return message


def test_no_damaged_frame_is_accepted() -> None:
    rng = random.Random(3)
    outcomes: Counter[str] = Counter()
    frames = [(type(specimen), encode(specimen)) for specimen in SPECIMENS]
    whole = {frame for _, frame in frames}
    for turn in range(DAMAGED_FRAMES):
        cls, frame = frames[turn % len(frames)]
        damaged = rng.choice(DAMAGES)(rng, frame, rng.choice(frames)[1])
        if damaged not in whole:
            assert _refused(damaged, cls, outcomes) is None
    assert set(outcomes) >= {"bad_magic", "wrong_kind", "truncated", "trailing_bytes", "checksum_mismatch", "oversize"}
    assert outcomes["checksum_mismatch"] > DAMAGED_FRAMES // 10


def test_hostile_bodies_with_a_valid_checksum_are_refused_or_are_valid_messages() -> None:
    rng = random.Random(4)
    outcomes: Counter[str] = Counter()
    bodies = [(type(specimen), body_of(encode(specimen))) for specimen in SPECIMENS]
    for turn in range(HOSTILE_BODIES):
        cls, body = bodies[turn % len(bodies)]
        damage = rng.choice(DAMAGES)
        other = rng.choice(bodies)[1]
        if turn % 8 == 0:
            packed = zstandard.compress(body)
            frame = framed(cls, damage(rng, packed, other), flags=FLAG_ZSTD, length=rng.choice((len(body), 1 << 19)))
        else:
            frame = framed(cls, damage(rng, body, other))
        message = _refused(frame, cls, outcomes)
        if message is not None:
            again = encode(message)
            assert encode(decode(again, cls)) == again
    assert set(outcomes) >= {"malformed", "invalid_field", "too_deep", "oversize"}
    assert outcomes["invalid_field"] > HOSTILE_BODIES // 20


def _swap_a_value(rng: random.Random, tree: Any, hostile: tuple[Any, ...]) -> None:
    """Walk down to a random place in a message and put something else there, take it away, or add to it."""
    while True:
        places = list(tree) if isinstance(tree, dict) else range(len(tree))
        place = rng.choice(places)
        below = tree[place]
        if isinstance(below, dict | list) and below and rng.random() < 0.7:
            tree = below
            continue
        chance = rng.random()
        if chance < 0.1:
            del tree[place]
        elif chance < 0.2 and isinstance(tree, dict):
            tree[rng.choice(("zz", "newer", "status", "reward", 7))] = copy.deepcopy(rng.choice(hostile))
        else:
            tree[place] = copy.deepcopy(rng.choice(hostile))
        return


def test_well_formed_bodies_with_hostile_values_are_refused_or_are_valid_messages() -> None:
    rng = random.Random(6)
    outcomes: Counter[str] = Counter()
    bodies = [(type(specimen), body_of(encode(specimen))) for specimen in SPECIMENS]
    arrays = [as_tree(specimen)["token_ids"] for specimen in SPECIMENS if isinstance(specimen, Trajectory)]
    numbers = (0, 1, -1, 2**31, 2**53 + 1, 2**63, 2**64 - 1, -(2**63), 0.5, -0.0, 1e300, math.nan, math.inf, -math.inf)
    texts = ("", "x" * 5000, "a\nb", "\0", "✓", "stop", "abort", "scored", "failed", "evaluation")
    others = (
        None,
        True,
        b"",
        b"\xff" * 8,
        *arrays,
        [],
        [[]],
        [1, 1, 1],
        {},
        {"a": 1},
        {"newer": {}},
        {"status": "failed"},
    )
    hostile = (*numbers, *texts, *others, [0] * 300, msgspec.msgpack.Ext(5, b"x"))
    for turn in range(HOSTILE_TREES):
        cls, body = bodies[turn % len(bodies)]
        tree = msgspec.msgpack.decode(body)
        for _ in range(rng.choice((1, 1, 2))):
            _swap_a_value(rng, tree, hostile)
        message = _refused(framed(cls, msgspec.msgpack.encode(tree)), cls, outcomes)
        if message is not None:
            again = encode(message)
            assert encode(decode(again, cls)) == again
    assert outcomes["accepted"] > HOSTILE_TREES // 50
    assert outcomes["invalid_field"] > HOSTILE_TREES // 2


def test_hostile_headers_are_refused_or_are_valid_headers() -> None:
    rng = random.Random(5)
    outcomes: Counter[str] = Counter()
    valid = [headers(trajectory()), headers(short_trajectory(outcome=Failed(error="engine.dead"), prompt_id="✓ ü"))]
    texts = [sent[TRAJECTORY].encode() for sent in valid]
    for turn in range(DAMAGED_HEADERS):
        damaged = rng.choice(DAMAGES)(rng, texts[turn % 2], rng.choice(texts))
        message_id = "x" if rng.random() < 0.9 else _noise(rng, b"", b"").decode("latin-1")
        text = damaged.decode(rng.choice(("latin-1", "utf-8")), "surrogateescape")
        try:
            _, header = parse_headers({MESSAGE_ID: message_id, TRAJECTORY: text})
        except WireError as error:
            outcomes[error.reason] += 1
        else:
            outcomes["accepted"] += 1
            assert msgspec.convert(msgspec.to_builtins(header), type(header)) == header
            assert (header.error is None) == (header.reward is not None)
    assert set(outcomes) >= {"malformed", "invalid_field", "unsupported_version"}


def test_hostile_headers_of_columns_are_refused_or_are_valid_headers() -> None:
    rng = random.Random(8)
    outcomes: Counter[str] = Counter()
    valid = [
        column_headers(column_header(turn_rewards=((0.5,), (), (1.0, 2.0)))),
        column_headers(column_header(rewards=None, error="engine.dead", message="\u2713 \u00fc")),
    ]
    for turn in range(DAMAGED_HEADERS):
        sent = valid[turn % 2]
        damaged = rng.choice(DAMAGES)(rng, sent[COLUMN].encode(), rng.choice(valid)[COLUMN].encode())
        text = damaged.decode(rng.choice(("latin-1", "utf-8")), "surrogateescape")
        try:
            header = parse_column_headers(sent | {COLUMN: text})
        except WireError as error:
            outcomes[error.reason] += 1
        else:
            outcomes["accepted"] += 1
            assert msgspec.convert(msgspec.to_builtins(header), type(header)) == header
            assert header.error is None or (header.rewards, header.turn_rewards, header.keep) == (None, None, None)
    assert set(outcomes) >= {"malformed", "invalid_field", "unsupported_version"}
