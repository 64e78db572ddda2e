"""A fleet that is scaled down again and again and killed now and then, under load: no task is lost, none is doubled."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.polling import eventually
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.forked_pods import RolloutPod
from tests.support.rollout.job import Job, first_runs
from tests.support.rollout.pod_site import PodSite, openai_engine
from tests.support.sizes import Drains, Sizes
from tests.support.template_process import TemplateProcess
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.kv_watch import keys
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.signing import Signer
from trimtab.fabric.wire.trajectory import Scored

GROUP = 2
FLEET = 3
GRACE_S = 10
SLOW_S = 7.0


@pytest.fixture
def engine(rollout_model: Path, tmp_path: Path) -> Iterator[EngineProcess]:
    process = EngineProcess(rollout_model, tmp_path, max_running=64, max_queued=4096)
    process.start()
    yield process
    process.kill()


async def test_of_all_tasks_over_many_scale_downs_none_is_lost_and_none_doubled(
    engine: EngineProcess, rollout_model: Path, rollout_template: TemplateProcess, tmp_path: Path, sizes: Sizes
) -> None:
    with EmbeddedNats(tmp_path / "nats") as nats, EmbeddedSeaweed(tmp_path / "seaweedfs") as store:
        site = PodSite(
            folder=tmp_path / "site",
            job="drains",
            model=rollout_model,
            engine_url=engine.url,
            nats=nats.settings,
            store=store.settings,
            public_key=Signer.generate().public_text,
            engine=openai_engine(rollout_model),
            workflow={"entrypoint": "tests.support.rollout.troubled_workflows:TakesItsTime"},
            group_size=GROUP,
            max_tokens=3,
            max_concurrency=16,
            grace_s=GRACE_S,
        )
        site.lay_out()
        async with await Bus.connect(nats.settings, name="test") as bus:
            await declare_job(bus, site.topology, deadline_s=60.0)
            await _storm(Job(bus, site.topology), site, rollout_template, sizes.drains)


def assert_all_run(pods: list[RolloutPod]) -> None:
    for pod in pods:
        assert pod.runs, pod.said()


async def _storm(job: Job, site: PodSite, template: TemplateProcess, size: Drains) -> None:
    for number in range(size.tasks):
        seconds = SLOW_S if number % size.slow_every == 0 else None
        prompt = {"prompt": "1,2,3>", "answer": "3", "seconds": seconds}
        await job.issue(1, task_id=f"task-{number}", prompt=prompt, seed=number, group_size=GROUP)
    names = itertools.count()
    pods: list[RolloutPod] = []
    leaving: list[RolloutPod] = []

    def join() -> None:
        pod = RolloutPod(site, f"w{next(names)}", template)
        pod.start()
        pods.append(pod)

    for _ in range(FLEET):
        join()
    events = ["leave"] * size.scale_downs
    for number in range(size.kills):
        events.insert(3 + number * (size.scale_downs // size.kills + 1), "kill")
    for number, event in enumerate(events, start=1):
        # Spread over the work, not over time: the last of them comes while there is still something to lose.
        left = size.tasks - number * (size.tasks // (len(events) + 1))

        async def far_enough(left: int = left) -> bool:
            leaving[:] = [pod for pod in leaving if not pod.left_well()]
            assert_all_run(pods)
            return await job.tasks_left() <= left

        await eventually(far_enough, timeout_s=60.0)
        victim = pods.pop(0)
        if event == "kill":
            victim.kill()
        else:
            victim.tell_to_leave()
            leaving.append(victim)
        join()

    async def settled() -> bool:
        assert_all_run(pods)
        return await job.settled()

    await eventually(settled, timeout_s=120.0)
    for pod in pods:
        pod.tell_to_leave()
    leaving += pods
    await eventually(lambda: all(pod.left_well() for pod in leaving), timeout_s=GRACE_S + 10.0)
    await _check(job, size)


async def _check(job: Job, size: Drains) -> None:
    trajectories = first_runs(await job.trajectories())
    wanted = Counter(f"task-{number}.solver.{index}.0" for number in range(size.tasks) for index in range(GROUP))
    assert Counter(trajectory.trajectory_id for trajectory in trajectories) == wanted
    assert all(isinstance(trajectory.outcome, Scored) for trajectory in trajectories)
    assert await job.quarantined() == {}
    _, unsettled = await job.deliveries()
    assert unsettled == 0
    # It was no idle fleet that was scaled down: many took part, and some had to hand back what they had.
    assert len({trajectory.worker for trajectory in trajectories}) > size.scale_downs // 2
    assert await keys(KeyValue(job.bus, job.topology.hand_backs), deadline_s=60.0)
