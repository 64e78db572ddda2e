"""Workflows that do what they must not, and an engine that dies: typed outcomes, no reward, and the worker goes on."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.forked_pods import RolloutPod
from tests.support.rollout.job import Job
from tests.support.rollout.pod_site import PodSite, openai_engine
from tests.support.template_process import TemplateProcess
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.signing import Signer
from trimtab.fabric.wire.trajectory import Failed, Scored

TROUBLES = {
    "hangs": "episode-timeout",
    "ignores_cancellation": "episode-timeout",
    "reward_raises": "workflow-error",
    "reward_is_nan": "workflow-error",
    "reward_is_text": "workflow-error",
    "reward_is_none": "workflow-error",
    "returns_no_episode": "workflow-error",
    "exits": "workflow-exited",
    "exits_in_a_task": "workflow-exited",
    "is_interrupted": "workflow-exited",
    "cancels_itself": "workflow-cancelled",
    "runs_out_of_memory": "out-of-memory",
}
GROUP = 2
PROMPT = {"prompt": "1,2,3>", "answer": "3"}

Sites = Callable[..., PodSite]


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with EmbeddedNats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSeaweed]:
    with EmbeddedSeaweed(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="module")
def engine(rollout_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    process = EngineProcess(rollout_model, tmp_path_factory.mktemp("engine"))
    process.start()
    yield process
    process.kill()


@pytest.fixture
async def bus(nats: EmbeddedNats) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats.settings, name="test") as connected:
        yield connected


@pytest.fixture
def sites(
    nats: EmbeddedNats, store: EmbeddedSeaweed, engine: EngineProcess, rollout_model: Path, tmp_path: Path
) -> Sites:
    def make(name: str, *, episode_timeout_s: int, **changes: Any) -> PodSite:
        entrypoint = "tests.support.rollout.troubled_workflows:Troubled"
        site = PodSite(
            folder=tmp_path / name,
            job=f"{name}-{uuid.uuid4().hex[:8]}",
            model=rollout_model,
            engine_url=engine.url,
            nats=nats.settings,
            store=store.settings,
            public_key=Signer.generate().public_text,
            engine=openai_engine(rollout_model),
            workflow={"entrypoint": entrypoint, "episodeTimeoutSeconds": episode_timeout_s},
            group_size=GROUP,
            max_concurrency=64,
            **changes,
        )
        site.lay_out()
        return site

    return make


async def test_no_workflow_takes_the_worker_with_it_and_none_is_rewarded_for_trying(
    sites: Sites, bus: Bus, rollout_template: TemplateProcess
) -> None:
    site = sites("troubled", episode_timeout_s=12)
    await declare_job(bus, site.topology, deadline_s=60.0)
    job = Job(bus, site.topology)
    for trouble in TROUBLES:
        await job.issue(1, task_id=trouble, prompt=PROMPT | {"trouble": trouble}, group_size=GROUP)
    pod = RolloutPod(site, "w0", rollout_template)
    pod.start()
    await pod.settles(job, timeout_s=90.0)

    trajectories = await job.trajectories()
    assert len({trajectory.trajectory_id for trajectory in trajectories}) == len(trajectories)
    found = {
        (trajectory.task_id, trajectory.outcome.error)
        for trajectory in trajectories
        if isinstance(trajectory.outcome, Failed)
    }
    assert found == set(TROUBLES.items())
    assert len(trajectories) == len(TROUBLES) * GROUP
    quarantined = await job.quarantined()
    assert {task: entry.error for task, entry in quarantined.items()} == TROUBLES
    assert {entry.attempts for entry in quarantined.values()} == {2}
    for kind in set(TROUBLES.values()):
        groups = sum(wanted == kind for wanted in TROUBLES.values())
        assert await pod.metric("failures_total", kind=kind) == 2 * groups, kind
    assert await pod.metric("groups_total", outcome="retried") == len(TROUBLES)
    assert await pod.metric("groups_total", outcome="quarantined") == len(TROUBLES)
    assert await pod.metric("trajectories_total", outcome="scored") == 0

    await job.issue(1, task_id="blocks", prompt=PROMPT | {"trouble": "blocks"}, group_size=1)
    await pod.settles(job, timeout_s=60.0)
    said = [line for line in site.lines("w0") if line["event"] == "event_loop_blocked"]
    assert any(line["task"] == "episode blocks.0" and "_blocks" in line["where"][-1] for line in said), said
    assert await pod.metric("event_loop_blocked_seconds_total") >= 3.0

    await job.issue(20, group_size=GROUP)
    await pod.settles(job, timeout_s=60.0)
    scored = {t.task_id for t in await job.trajectories() if isinstance(t.outcome, Scored)}
    assert scored >= {f"task-{number}" for number in range(20)}
    assert pod.runs
    await pod.leave()


@pytest.mark.slow
async def test_a_dead_engine_is_waited_for_and_named_when_it_stays_away(
    sites: Sites, bus: Bus, engine: EngineProcess, rollout_template: TemplateProcess
) -> None:
    patient = sites("patient", episode_timeout_s=200)
    impatient = sites("impatient", episode_timeout_s=10)
    jobs, pods = [], []
    for site in (patient, impatient):
        await declare_job(bus, site.topology, deadline_s=60.0)
        jobs.append(Job(bus, site.topology))
        pods.append(RolloutPod(site, "w0", rollout_template))
        pods[-1].start()
    waiting, failing = jobs
    for job, pod in zip(jobs, pods, strict=True):
        await job.issue(2, group_size=GROUP)
        await pod.settles(job, timeout_s=90.0)

    engine.kill()
    for job in jobs:
        await _issue(job, "late", 6)
    await pods[1].settles(failing, timeout_s=90.0)
    late = [t for t in await failing.trajectories() if t.task_id.startswith("late")]
    assert {t.outcome.error for t in late if isinstance(t.outcome, Failed)} == {"engine-timeout"}
    assert len(late) == 6 * GROUP
    assert set(await failing.quarantined()) == {f"late-{number}" for number in range(6)}
    assert await waiting.tasks_left() == 6

    engine.start()
    await engine.serves()
    for job in jobs:
        await _issue(job, "after", 4)
    for job, pod in zip(jobs, pods, strict=True):
        await pod.settles(job, timeout_s=120.0)
        assert pod.runs
        await pod.leave()
    assert all(isinstance(t.outcome, Scored) for t in await waiting.trajectories())
    assert len(await waiting.trajectories()) == (2 + 6 + 4) * GROUP
    after = [t for t in await failing.trajectories() if t.task_id.startswith("after")]
    assert [type(t.outcome) for t in after] == [Scored] * 4 * GROUP


async def _issue(job: Job, name: str, count: int) -> None:
    for number in range(count):
        await job.issue(1, task_id=f"{name}-{number}", group_size=GROUP)
