"""Rows that were too large for a message: trained from object storage, verified, set aside when they are not what was
claimed, and collected when nobody can ask for them any more.
"""

from __future__ import annotations

import asyncio
import hashlib
import time

import msgspec
import numpy as np
import pytest

from tests.support.polling import within
from tests.support.trainer.batch_server import BatchServer
from tests.support.trainer.samples import trajectory
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.row_claims import RowClaims
from trimtab.fabric.wire.claim import ClaimCheck, claims_of
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.header import MESSAGE_ID, headers
from trimtab.fabric.wire.trajectory import Trajectory
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.batch import StepPortion
from trimtab.trainer.batch_stream import BatchStream, PortionId, RankIdentity, Trained
from trimtab.trainer.claim_collection import MARGIN_S, ClaimCollector, is_unclaimed


class Claimed:
    """A job whose first row is a claim that a test may tamper with; the second is a message like any other."""

    def __init__(self, bus: Bus, topology: JobTopology, store: ObjectStore) -> None:
        self.row: Trajectory = trajectory(0, job=topology.job)
        self.claims = RowClaims(store, deadline_s=5.0)
        self.set_aside = 0
        self._bus = bus
        self._topology = topology

    async def portion(self, claim: ClaimCheck, *, claims: RowClaims | None) -> StepPortion:
        server = BatchServer(self._bus, self._topology, steps=1)
        async with await server.open():
            stored = await publish(
                self._bus,
                self._topology.trajectory_subject("solver"),
                encode(claim),
                message_id="claimed",
                headers={**headers(self.row), MESSAGE_ID: "claimed"},
            )
            server.sequences[0] = stored.sequence
            stream = BatchStream(
                self._bus,
                self._topology.batch_subject("solver"),
                RankIdentity(job=self._topology.job, policy="solver", rank=0, world_size=1, attempt=0),
                advantages=AdvantageRule(longest_answer=8, normalize=False),
                clock=lambda: 5.0,
                claims=claims,
                on_set_aside=self._aside,
            )
            taking = stream.portion(PortionId(step=0), trained=Trained(steps=0), stopping=lambda: False)
            portion = await within(asyncio.ensure_future(taking), 60.0)
        assert portion is not None
        return portion

    def _aside(self) -> None:
        self.set_aside += 1


@pytest.fixture
def claimed(bus: Bus, topology: JobTopology, store: ObjectStore) -> Claimed:
    return Claimed(bus, topology, store)


async def test_a_claimed_row_is_trained_like_any_other(claimed: Claimed) -> None:
    claim = await claimed.claims.deposit(claimed.row, encode(claimed.row))
    portion = await claimed.portion(claim, claims=claimed.claims)
    first, second = portion.rows
    assert first.token_ids.tolist() == claimed.row.token_ids.tolist()
    np.testing.assert_array_equal(first.logprobs, claimed.row.token_logprobs())
    assert (first.trained_tokens, second.trained_tokens, claimed.set_aside) == (2, 2, 0)


@pytest.mark.parametrize("trouble", ["gone", "altered", "grown", "another row", "no store", "another size"])
async def test_what_is_not_what_was_claimed_is_set_aside_and_the_step_goes_on(
    claimed: Claimed, store: ObjectStore, trouble: str
) -> None:
    """No reward is made of it, and no rank waits for it: nothing of the row is trained."""
    frame = encode(claimed.row)
    claim = await claimed.claims.deposit(claimed.row, frame)
    claims: RowClaims | None = claimed.claims
    match trouble:
        case "gone":
            await store.delete(claim.object_key)
        case "altered":
            await store.put(claim.object_key, bytes([frame[0] ^ 1]) + frame[1:])
        case "grown":
            await store.put(claim.object_key, frame + b"more")
        case "another row":
            other = trajectory(5, job=claimed.row.job)
            claim = await claimed.claims.deposit(other, encode(other))
        case "no store":
            claims = None
        case "another size":
            claim = msgspec.structs.replace(claim, size_bytes=claim.size_bytes - 1)
    portion = await claimed.portion(claim, claims=claims)
    assert [row.trained_tokens for row in portion.rows] == [0, 2]
    assert claimed.set_aside == 1
    assert portion.totals is not None
    assert portion.totals.samples == len(portion.rows), "the step has what was granted"


@pytest.mark.slow
async def test_a_store_that_restarts_delays_it_only(
    bus: Bus, topology: JobTopology, own_seaweed: EmbeddedSeaweed
) -> None:
    async with ObjectStore(own_seaweed.settings) as store:
        claimed = Claimed(bus, topology, store)
        claim = await claimed.claims.deposit(claimed.row, encode(claimed.row))
        own_seaweed.kill()
        taking = asyncio.create_task(claimed.portion(claim, claims=RowClaims(store, deadline_s=5.0)))
        done, _ = await asyncio.wait({taking}, timeout=1.5)
        assert not done
        own_seaweed.start()
        portion = await within(taking, 60.0)
    assert [row.trained_tokens for row in portion.rows] == [2, 2]
    assert claimed.set_aside == 0


def test_what_is_stored_is_unclaimed_when_its_message_would_be_older_than_all_there_are() -> None:
    def unclaimed(stored_at: float | None) -> bool:
        return is_unclaimed(stored_at, oldest_at=10_000.0, margin_s=600.0)

    assert unclaimed(9_399.0)
    assert not unclaimed(9_400.0), "its claim may have taken that long to be published"
    assert not unclaimed(10_001.0)
    assert not unclaimed(None)


async def test_rows_are_collected_when_the_stream_no_longer_has_their_claims(
    claimed: Claimed, bus: Bus, topology: JobTopology, store: ObjectStore
) -> None:
    await declare_job(bus, topology, deadline_s=60.0)
    ahead = 0.0

    def collector(policy: str) -> ClaimCollector:
        stream = topology.trajectories.name
        return ClaimCollector(store, bus, stream=stream, policy=policy, clock=lambda: time.time() + ahead)

    orphan = await claimed.claims.deposit(claimed.row, encode(claimed.row))
    assert await collector("solver").collect() == 0, "its claim may still be on its way"
    subject = topology.trajectory_subject("solver")
    sent = {**headers(claimed.row), MESSAGE_ID: "claimed"}
    await publish(bus, subject, encode(orphan), message_id="claimed", headers=sent, deadline_s=60.0)
    ahead = 2 * MARGIN_S
    assert await collector("solver").collect() == 0, "it is in the stream: it waits, or may be replayed"
    purge = f"STREAM.PURGE.{topology.trajectories.name}"
    await api_call(bus, purge, deadline_s=60.0)
    assert await collector("judge").collect() == 0, "another policy's"
    assert await collector("solver").collect() == 1
    assert [info async for info in store.scan(claims_of("solver"))] == []


async def test_an_object_is_named_after_what_is_in_it(claimed: Claimed, store: ObjectStore) -> None:
    frame = encode(claimed.row)
    claim = await claimed.claims.deposit(claimed.row, frame)
    assert await claimed.claims.deposit(claimed.row, frame) == claim
    assert claim.object_key == f"claims/solver/{hashlib.sha256(frame).hexdigest()}"
    assert [info.key async for info in store.scan("claims/")] == [claim.object_key]
