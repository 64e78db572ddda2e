"""Every message survives the wire unchanged, also when a newer writer added fields to it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fabric.wire_frames import as_tree, body_of, framed
from tests.support.fabric.wire_specimens import SPECIMENS, lease, short_trajectory, task, trajectory
from tests.support.fabric.wire_strategies import MESSAGES, plain
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import InvalidFieldError
from trimtab.fabric.wire.lease import MAX_SAMPLES, BatchLease, BatchNotReady, Episode, Group, LeaseRefused, StepTotals
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.spans import Producer, Span, merged, model_mask, over_tokens, token_versions
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Failed, Trajectory


def test_every_kind_of_message_has_a_strategy_and_a_specimen_and_its_own_number() -> None:
    kinds = Message.__subclasses__()
    ours = {cls for cls in kinds if cls.__module__.startswith("trimtab.fabric.")}
    assert ours == set(MESSAGES) == {type(specimen) for specimen in SPECIMENS}
    assert len({cls.KIND for cls in kinds}) == len(kinds)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_any_message_survives_encoding(cls: type[Message]) -> None:
    @settings(deadline=None, derandomize=True, database=None)
    @given(MESSAGES[cls])
    def survives(message: Message) -> None:
        frame = encode(message)
        assert decode(frame, cls) == message
        assert encode(decode(frame, cls)) == frame

    survives()


@pytest.mark.parametrize("message", SPECIMENS, ids=lambda message: type(message).__name__)
def test_unknown_fields_survive_at_the_top(message: Message) -> None:
    @settings(max_examples=15, deadline=None, derandomize=True, database=None)
    @given(st.dictionaries(st.from_regex(r"\Azz_[a-z]{1,8}\Z"), plain, min_size=1, max_size=3))
    def survives(added: dict[str, Any]) -> None:
        tree = as_tree(message) | added
        received = decode(framed(type(message), msgspec.msgpack.encode(tree)), type(message))
        assert received.newer == added
        assert msgspec.structs.replace(received, newer={}) == message
        forwarded = decode(encode(received), type(message))
        assert forwarded == received

    survives()


def test_unknown_fields_survive_in_every_nested_struct() -> None:
    tree = as_tree(lease())
    tree["groups"][0]["curriculum"] = {"level": 3}
    tree["samples"][1]["entropy"] = 0.5
    tree["totals"]["images"] = 7
    tree["region"] = "eu"
    received = decode(framed(BatchLease, msgspec.msgpack.encode(tree)), BatchLease)
    assert received.samples[0].newer == {}
    again = encode(received)
    assert again == encode(decode(again, BatchLease))
    raw = msgspec.msgpack.decode(body_of(again))
    assert raw["groups"][0]["curriculum"] == {"level": 3}
    assert raw["samples"][1]["entropy"] == 0.5
    assert raw["totals"]["images"] == 7
    assert raw["region"] == "eu"
    assert "newer" not in raw


def test_unknown_fields_survive_in_a_tagged_outcome() -> None:
    failed = short_trajectory(outcome=Failed(error="engine.timeout"))
    tree = as_tree(failed)
    tree["outcome"]["trace_id"] = "abc"
    received = decode(framed(Trajectory, msgspec.msgpack.encode(tree)), Trajectory)
    assert received.outcome == Failed(error="engine.timeout", newer={"trace_id": "abc"})
    assert decode(encode(received), Trajectory) == received


def test_the_place_where_unknown_fields_wait_cannot_be_used_to_overwrite_known_ones() -> None:
    tree = as_tree(task()) | {"newer": {"task_id": "forged"}}
    with pytest.raises(InvalidFieldError):
        decode(framed(Task, msgspec.msgpack.encode(tree)), Task)


def test_one_of_several_replies_is_decoded_as_what_it_is() -> None:
    reply = BatchNotReady(policy="solver", step=3, reason="filling", retry_after=1.0)
    assert decode(encode(reply), BatchLease, BatchNotReady, LeaseRefused) == reply


def test_a_lease_of_as_many_rows_as_it_may_have_fits_a_message() -> None:
    """Eight megabytes are what the servers that Trimtab starts take."""
    episodes = tuple(Episode(0.123456789, 64, 64 * 1150) for _ in range(8))
    rows = [
        msgspec.structs.replace(
            lease().samples[0],
            sequence=10_000_000 + number,
            trajectory_id=f"t{1_000_000 + number // 512}.solver.{number // 64 % 8}.{number % 64}",
            group=number // 512,
            episode=number // 64 % 8,
            reward=0.1 * (number % 7),
        )
        for number in range(MAX_SAMPLES)
    ]
    groups = [Group(group_id=f"t{n}.solver", prompt_id=f"p{n}", episodes=episodes) for n in range(MAX_SAMPLES // 512)]
    totals = StepTotals(samples=len(rows), groups=len(groups), episodes=1024, tokens=1, trained_tokens=1)
    full = lease(samples=tuple(rows), groups=tuple(groups), totals=totals)
    frame = encode(full)
    assert len(frame) < 8 << 20
    assert decode(frame, BatchLease) == full


def test_decoding_accepts_any_buffer_and_gives_read_only_native_arrays() -> None:
    for message in (trajectory(), short_trajectory()):
        for buffer in (encode(message), bytearray(encode(message)), memoryview(encode(message))):
            received = decode(buffer, Trajectory)
            assert received == message
            for array, dtype in ((received.token_ids, np.int32), (received.logprobs, np.float32)):
                assert array.dtype == np.dtype(dtype)
                assert not array.flags.writeable


def test_threads_do_not_disturb_each_other() -> None:
    messages = [trajectory(token_ids=np.full(1500, number, dtype=np.int32)) for number in range(40)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda message: decode(encode(message), Trajectory), messages)) == messages


def test_a_trajectory_is_smaller_than_its_arrays() -> None:
    message = trajectory()
    assert len(encode(message)) < 0.8 * (message.token_ids.nbytes + message.logprobs.nbytes)


def test_what_a_trajectory_says_about_its_tokens() -> None:
    message = trajectory()
    assert message.prompt_tokens == 300
    assert message.response_tokens == 1200
    assert message.trained_tokens == 1150
    assert (message.oldest_version, message.newest_version) == (7, 8)
    mask = model_mask(message.spans)
    assert mask.sum() == 1150
    assert not mask[:300].any()
    assert mask[300:1000].all()
    assert not mask[1000:1050].any()
    aligned = message.token_logprobs()
    assert np.array_equal(aligned[mask], message.logprobs)
    assert not aligned[~mask].any()
    assert set(token_versions(message.spans)[mask].tolist()) == {7, 8}
    assert set(token_versions(message.spans)[~mask].tolist()) == {-1}


def test_values_of_trained_tokens_are_put_at_their_places() -> None:
    spans = (
        Span(2, Producer.PROMPT),
        Span(3, Producer.MODEL, 1),
        Span(1, Producer.ENVIRONMENT),
        Span(1, Producer.MODEL, 2),
    )
    values = np.arange(1, 5, dtype=np.float32)
    assert over_tokens(spans, values).tolist() == [0, 0, 1, 2, 3, 0, 4]
    with pytest.raises(ValueError, match="5 values for 4 model tokens"):
        over_tokens(spans, np.zeros(5, dtype=np.float32))


def test_a_failure_without_tokens_has_no_versions() -> None:
    message = short_trajectory(
        outcome=Failed(error="engine.dead"),
        token_ids=np.zeros(0, dtype=np.int32),
        logprobs=np.zeros(0, dtype=np.float32),
        spans=(),
    )
    assert decode(encode(message), Trajectory) == message
    assert message.oldest_version is None
    assert message.newest_version is None


def test_merging_joins_equal_neighbours_only() -> None:
    model, other = Producer.MODEL, Producer.ENVIRONMENT
    assert merged([Span(2, model, 1), Span(3, model, 1), Span(1, model, 2), Span(4, other), Span(1, other)]) == (
        Span(5, model, 1),
        Span(1, model, 2),
        Span(5, other),
    )
