"""A worker killed between storing a huge row and publishing its claim: the row stays behind, and is collected."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked_process import ForkedProcess
from tests.support.polling import eventually
from tests.support.rollout.dying_depositor import prepare, work_until_killed
from tests.support.rollout.huge_rows import Huge
from tests.support.rollout.job import Job, working
from tests.support.rollout.speakers import EchoSampler, role
from tests.support.template_process import TemplateProcess, template_process
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.row_claims import RowClaims
from trimtab.fabric.wire.claim import claims_of
from trimtab.trainer.claim_collection import ClaimCollector

_KILLED = -9
_MARGIN_S = 5.0


@pytest.fixture(scope="module")
def template() -> Iterator[TemplateProcess]:
    with template_process(prepare) as started:
        yield started


@pytest.mark.slow
async def test_a_row_whose_claim_was_never_published_is_collected_and_others_are_not(
    template: TemplateProcess, tmp_path: Path
) -> None:
    with EmbeddedNats(tmp_path / "nats") as nats, EmbeddedSeaweed(tmp_path / "objects") as seaweed:
        objects = seaweed.settings.model_copy(update={"prefix": f"t/{uuid.uuid4().hex}"})
        async with await Bus.connect(nats.settings, name="test") as bus, ObjectStore(objects) as store:
            job = await Job.open(bus)

            async def deposited() -> list[str]:
                return [info.key async for info in store.scan(claims_of("solver"))]

            await job.issue(1, group_size=1)
            dying = ForkedProcess(
                template, tmp_path / "dying.log", work_until_killed, nats.settings, objects, job.topology
            )
            await eventually(lambda: dying.ended() is not None, timeout_s=60.0)
            assert dying.ended() == _KILLED, (tmp_path / "dying.log").read_text()
            (orphan,) = await deposited()
            assert await job.trajectories() == [], "nothing of it is in the stream: no group waits for it"

            collector = ClaimCollector(
                store,
                bus,
                stream=job.topology.trajectories.name,
                policy="solver",
                clock=time.time,
                margin_s=_MARGIN_S,
            )
            left_at = time.time()
            # Another worker brings another row meanwhile, which is in the stream and stays.
            await eventually(lambda: time.time() > left_at + _MARGIN_S + 2.0, timeout_s=60.0)
            await job.issue(1, group_size=1, task_id="task-later")
            workflow = Huge(tokens=bus.max_payload // 3)
            worker = job.worker(workflow, {"solver": role(EchoSampler())}, claims=RowClaims(store))
            async with working(worker):
                await eventually(lambda: worker.completed == 1, timeout_s=60.0)
            assert len(await deposited()) == 2
            assert await collector.collect() == 1
            assert orphan not in await deposited()
            assert await collector.collect() == 0
