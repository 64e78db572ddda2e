"""What a job's streams may take: the manifest before the operator's defaults, and never more than the account."""

from __future__ import annotations

import pytest

from trimtab.api.streams import StreamPlacement, Streams
from trimtab.fabric.bus.stream_limits import Placement, StreamLimits
from trimtab.operator.stream_limits import StreamDefaults, limits_refusal, stream_limits

GIB, MIB = 1 << 30, 1 << 20
NOTHING, OWN = Streams(), Streams(replicas=3, max_bytes=64 * MIB, max_messages=10)
DEFAULTS = StreamDefaults(replicas=5, max_bytes=32 * MIB, max_messages=20)


@pytest.mark.parametrize(
    ("streams", "defaults", "account", "expected"),
    [
        (NOTHING, StreamDefaults(), None, StreamLimits()),
        (NOTHING, DEFAULTS, None, StreamLimits(replicas=5, max_bytes=32 * MIB, max_messages=20)),
        (OWN, DEFAULTS, None, StreamLimits(replicas=3, max_bytes=64 * MIB, max_messages=10)),
        (NOTHING, StreamDefaults(), 8 * GIB, StreamLimits(max_bytes=7 * GIB)),
        (Streams(replicas=3), StreamDefaults(), 24 * GIB, StreamLimits(replicas=3, max_bytes=7 * GIB)),
        (NOTHING, StreamDefaults(max_bytes=9 * GIB), 8 * GIB, StreamLimits(max_bytes=7 * GIB)),
        (OWN, StreamDefaults(), 8 * GIB, StreamLimits(replicas=3, max_bytes=64 * MIB, max_messages=10)),
    ],
)
def test_limits(streams: Streams, defaults: StreamDefaults, account: int | None, expected: StreamLimits) -> None:
    assert stream_limits(streams, defaults, storage_bytes=account) == expected


def test_placement_is_taken_over() -> None:
    streams = Streams(placement=StreamPlacement(cluster="west", tags=("ssd",)))
    limits = stream_limits(streams, StreamDefaults(), storage_bytes=None)
    assert limits.placement == Placement(cluster="west", tags=("ssd",))


def test_more_than_the_account_may_store_is_refused_with_the_field() -> None:
    greedy = Streams(max_bytes=8 * GIB)
    said = limits_refusal(greedy, StreamDefaults(), storage_bytes=8 * GIB)
    assert said is not None
    assert said.startswith("spec.streams.maxBytes: ")
    assert str(7 * GIB) in said
    assert limits_refusal(greedy, StreamDefaults(), storage_bytes=10 * GIB) is None
    assert limits_refusal(greedy, StreamDefaults(replicas=3), storage_bytes=10 * GIB) is not None
    assert limits_refusal(greedy, StreamDefaults(), storage_bytes=None) is None
    assert limits_refusal(NOTHING, StreamDefaults(), storage_bytes=GIB) is None
