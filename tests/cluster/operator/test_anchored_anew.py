"""A job whose ledger had lost its end goes on, and its status and an event say so, once."""

from __future__ import annotations

import asyncio
import time

from tests.support.operator.administrator import administrators_bus
from tests.support.operator.scene import Scene, tiny_job
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.member import ANCHORED_ANEW, GIVEN_UP_GROUPS, MemberHeartbeat, Role, State
from trimtab.kube.resources import EVENTS, RLJOBS

_DATAFLOW = "tiny-dataflow-0"


async def _said(servers: dict[str, str], scene: Scene, *, uid: str) -> bool:
    """The dataflow's sign of life after it has found that its ledger was cut short; False while there is no bucket."""
    now = time.time()
    beat = MemberHeartbeat(
        member_id=_DATAFLOW,
        job="tiny",
        role=Role.DATAFLOW,
        state=State.READY,
        failures={ANCHORED_ANEW: 1, GIVEN_UP_GROUPS: 7},
        started_at=now,
        sent_at=now,
    )
    try:
        async with await administrators_bus(servers, job_uid=uid) as bus:
            bucket = KeyValue(bus, JobTopology(scene.namespace, "tiny").members)
            await bucket.put(_DATAFLOW, encode(beat), deadline_s=5.0)
    except BusError:
        return False
    return True


def test_a_ledger_that_was_anchored_anew_is_told_once(scene: Scene, servers: dict[str, str]) -> None:
    scene.apply(tiny_job())
    scene.until(lambda: _DATAFLOW in scene.pods(), bool)
    scene.make_ready(_DATAFLOW)  # which has the operator make the streams
    uid = scene.must_get(RLJOBS, "tiny")["metadata"]["uid"]

    def told() -> tuple[int, int]:
        asyncio.run(_said(servers, scene, uid=uid))
        status = scene.must_get(RLJOBS, "tiny").get("status") or {}
        return status.get("anchoredAnew", 0), status.get("givenUpGroups", 0)

    scene.until(told, lambda counts: counts == (1, 7))
    scene.until(lambda: scene.reasons("tiny"), lambda reasons: "LedgerAnchoredAnew" in reasons)
    told()
    (event,) = (one for one in scene.listed(EVENTS) if one["reason"] == "LedgerAnchoredAnew")
    assert "7 prompt groups are given up, and none is trained twice" in event["message"]
    assert event.get("count", 1) == 1
