"""A rank reads columns from a real stream, also those that lie in object storage, and sets aside rows whose column is
not what was leased.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.trainer.batch_server import GROUP_SIZE, BatchServer
from tests.support.trainer.samples import trajectory
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusNotFound
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import delete_message
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.row_claims import RowClaims
from trimtab.fabric.wire.claim import claims_of
from trimtab.fabric.wire.column import Column
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.lease import BatchLease, BatchRequest
from trimtab.fabric.wire.stage import ColumnReference
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.batch import StepPortion
from trimtab.trainer.batch_stream import BatchStream, PortionId, RankIdentity, Trained

VALUES = np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)


@pytest.fixture
def topology() -> JobTopology:
    return JobTopology("t", f"c{uuid.uuid4().hex[:12]}", stages=("reference",))


class Site:
    """One step of one group, and a column of it."""

    def __init__(self, bus: Bus, topology: JobTopology) -> None:
        self.bus = bus
        self.topology = topology
        self.server = BatchServer(bus, topology, steps=1)
        self.server.instead = self._lease
        self.sequence = 1
        self.set_aside = 0

    def _lease(self, request: BatchRequest) -> BatchLease:
        lease = self.server.lease(request)
        assert isinstance(lease, BatchLease)
        columns = (ColumnReference(stage="reference", sequence=self.sequence),)
        groups = tuple(msgspec.structs.replace(group, columns=columns) for group in lease.groups)
        return msgspec.structs.replace(lease, groups=groups, columns_stream=self.topology.columns.name)

    def column(self, **changes: Any) -> Column:
        rows = [trajectory(number, job=self.topology.job, group_size=GROUP_SIZE) for number in range(GROUP_SIZE)]
        fields: dict[str, Any] = {
            "job": self.topology.job,
            "stage": "reference",
            "policy": "solver",
            "group_id": rows[0].group_id,
            "run": "a",
            "trajectory_ids": tuple(row.trajectory_id for row in rows),
            "lengths": (2, 2),
            "values": VALUES,
        }
        return Column(**fields | changes)

    async def portion(self, payload: bytes, *, claims: RowClaims | None = None, gone: bool = False) -> StepPortion:
        async with await self.server.open():
            subject = self.topology.column_subject("reference")
            self.sequence = (await publish(self.bus, subject, payload, message_id="c", deadline_s=60.0)).sequence
            if gone:
                await delete_message(self.bus, self.topology.columns.name, self.sequence, deadline_s=60.0)
            stream = BatchStream(
                self.bus,
                self.topology.batch_subject("solver"),
                RankIdentity(job=self.topology.job, policy="solver", rank=0, world_size=1, attempt=0),
                advantages=AdvantageRule(longest_answer=8, normalize=False),
                clock=lambda: 5.0,
                claims=claims,
                on_set_aside=self._aside,
            )
            portion = await stream.portion(PortionId(step=0), trained=Trained(steps=0), stopping=lambda: False)
        assert portion is not None
        return portion

    def _aside(self) -> None:
        self.set_aside += 1


@pytest.fixture
def site(bus: Bus, topology: JobTopology) -> Site:
    return Site(bus, topology)


async def test_rows_come_with_their_columns(site: Site) -> None:
    portion = await site.portion(encode(site.column()))
    assert [row.columns["reference"].tolist() for row in portion.rows] == [
        [0.0] * 4 + [1.0, 2.0],
        [0.0] * 4 + [3.0, 4.0],
    ]
    assert site.set_aside == 0


async def test_a_column_too_large_for_a_message_is_read_from_object_storage(site: Site, store: ObjectStore) -> None:
    claims = RowClaims(store, deadline_s=5.0)
    column = site.column()
    claim = await claims.deposit_column(column, encode(column))
    assert claim.object_key.startswith(claims_of("solver")), "where the rows lie that it is of"
    portion = await site.portion(encode(claim), claims=claims)
    assert portion.rows[1].columns["reference"].tolist() == [0.0] * 4 + [3.0, 4.0]


@pytest.mark.parametrize("trouble", ["another group", "too short", "no frame", "object gone", "no store"])
async def test_of_a_column_that_cannot_be_used_no_row_is_trained_and_the_step_goes_on(
    site: Site, store: ObjectStore, trouble: str
) -> None:
    claims: RowClaims | None = RowClaims(store, deadline_s=5.0)
    assert claims is not None
    payload = encode(site.column())
    match trouble:
        case "another group":
            payload = encode(site.column(group_id="t9.solver"))
        case "too short":
            payload = encode(site.column(lengths=(1, 1), values=VALUES[:2]))
        case "no frame":
            payload = b"nothing of the kind"
        case _:
            claim = await claims.deposit_column(site.column(), payload)
            payload = encode(claim)
            if trouble == "object gone":
                await store.delete(claim.object_key)
            else:
                claims = None
    portion = await site.portion(payload, claims=claims)
    assert site.set_aside == GROUP_SIZE
    assert [row.trained_tokens for row in portion.rows] == [0, 0]
    assert [row.columns["reference"].tolist() for row in portion.rows] == [[0.0], [0.0]]


async def test_a_column_that_was_deleted_is_an_error_and_not_a_row_without_one(site: Site) -> None:
    """The dataflow deletes none that may still be asked for, so this is lost data, as with rows."""
    with pytest.raises(BusNotFound):
        await site.portion(encode(site.column()), gone=True)
