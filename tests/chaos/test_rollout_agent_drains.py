"""Agents whose streams are open when their worker is told to leave: they notice nothing, or their episode is run again
from its beginning by another worker. What is trained is what they were told and what an ear before the engine heard.
"""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.gateway.engine_tap import EngineTap
from tests.support.gateway.live_models import make_talkative_models
from tests.support.gateway.streaming_agents import PROGRAMS
from tests.support.polling import eventually
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.forked_pods import RolloutPod
from tests.support.rollout.job import Job, first_runs
from tests.support.rollout.pod_site import PodSite
from tests.support.rollout.served_policies import SIGNER
from tests.support.template_process import TemplateProcess
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.kv_watch import keys
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.wire.trajectory import Scored, Trajectory
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.tokenizer import Tokenizer

GROUP = 2
TASKS = 2
TURNS = 2
LENGTH = 400
LONG_S, SHORT_S = 300, 8
"""Grace periods, of which five seconds are for handing back."""
D = 60.0


@dataclass(frozen=True)
class Seat:
    """A pod with an engine of its own, and the ear between them."""

    pod: RolloutPod
    engine: EngineProcess
    client: EngineClient
    tap: EngineTap

    def says(self, event: str) -> bool:
        return any(line["event"] == event for line in self.pod.site.lines(self.pod.name))


@dataclass(frozen=True)
class Fleet:
    """One job of agents, and its pods so far."""

    site: PodSite
    job: Job
    template: TemplateProcess
    closing: AsyncExitStack
    seats: dict[str, Seat]

    async def join(self) -> Seat:
        name = f"w{len(self.seats)}"
        folder = self.site.folder / name
        folder.mkdir()
        engine = EngineProcess(self.site.model, folder)
        engine.start()
        self.closing.callback(engine.kill)
        await engine.serves()
        tap = EngineTap()
        url = await self.closing.enter_async_context(tap.before(engine.url))
        client = await self.closing.enter_async_context(EngineClient(engine.url, request_timeout_s=D))
        pod = RolloutPod(replace(self.site, engine_url=url), name, self.template)
        pod.start()
        self.seats[name] = Seat(pod, engine, client, tap)
        return self.seats[name]

    async def issue(self, tasks: int) -> None:
        for number in range(tasks):
            task = f"task-{number}"
            prompt = {"opening": str(number), "turns": TURNS, "task": task, "folder": str(self.told)}
            await self.job.issue(1, task_id=task, prompt=prompt, seed=number, group_size=GROUP)

    @property
    def told(self) -> Path:
        return self.site.folder / "told"

    def agents(self) -> list[int]:
        """Processes that run the agent, or watch it."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if str(self.site.folder / "agent.py").encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
        return found

    async def all_stream(self, seat: Seat, episodes: int) -> None:
        """Every agent has a stream open, and has heard something of it."""

        def heard() -> bool:
            assert seat.pod.runs, seat.pod.said()
            return seat.tap.open_streams == episodes and seat.tap.sampled > 10 * episodes

        await eventually(heard, timeout_s=60.0)

    async def settled(self) -> bool:
        for seat in self.seats.values():
            assert seat.pod.told_at is not None or seat.pod.runs, seat.pod.said()
        return await self.job.settled()

    async def check(self, tasks: int) -> list[Trajectory]:
        """The rows of the job, of which every token is what was sampled, and what its agent was told."""
        stored = await self.job.trajectories()
        rows = first_runs(stored)
        wanted = Counter(f"task-{number}.solver.{index}.0" for number in range(tasks) for index in range(GROUP))
        assert Counter(row.trajectory_id for row in rows) == wanted, "an episode is one conversation"
        assert all(isinstance(row.outcome, Scored) for row in rows)
        assert await self.job.quarantined() == {}
        _, unsettled = await self.job.deliveries()
        assert unsettled == 0
        by_worker = defaultdict(list)
        for row in rows:
            by_worker[row.worker].append(row)
        for worker, own in by_worker.items():
            self.seats[worker].tap.check(own)
        tokenizer = Tokenizer.read(self.site.model)
        told = defaultdict(list)
        for file in self.told.iterdir():
            note = json.loads(file.read_text())
            told[note["task"]].append(note["told"])
        for task, own in _by_task(rows).items():
            # Of a group that was handed back some agents may have come to their end before.
            for row in own:
                told[task].remove(_said(row, tokenizer.decode))
        return rows


FleetOf = Callable[[str, int], AbstractAsyncContextManager[Fleet]]
"""By the library that its agents use, and the grace period of its pods."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talkative")
    make_talkative_models(folder)
    return folder


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with EmbeddedNats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSeaweed]:
    with EmbeddedSeaweed(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def fleet_of(
    models: Path, nats: EmbeddedNats, store: EmbeddedSeaweed, rollout_template: TemplateProcess, tmp_path: Path
) -> FleetOf:
    @asynccontextmanager
    async def made(library: str, grace_s: int) -> AsyncIterator[Fleet]:
        arguments = {
            "command": [sys.executable, "agent.py"],
            "reward": "tests.support.gateway.streaming_agents:note",
        }
        site = PodSite(
            folder=tmp_path / "site",
            job=f"agents-{uuid.uuid4().hex[:8]}",
            model=models / "0",
            engine_url="",
            nats=nats.settings,
            store=store.settings,
            public_key=SIGNER.public_text,
            engine={"name": "builtin"},
            workflow={
                "entrypoint": "trimtab.rollout.workflows.external_agent:ExternalAgent",
                "source": {"path": "."},
                "args": arguments,
            },
            group_size=GROUP,
            max_tokens=LENGTH,
            grace_s=grace_s,
            # An episode that fails for whatever reason is seen: there is no second attempt.
            tasks={"leaseSeconds": 60, "maxDeliveries": 1},
        )
        site.lay_out()
        (site.folder / "agent.py").write_text(PROGRAMS[library])
        (site.folder / "told").mkdir()
        async with await Bus.connect(nats.settings, name="test") as bus, AsyncExitStack() as closing:
            await declare_job(bus, site.topology, deadline_s=D)
            yield Fleet(site, Job(bus, site.topology), rollout_template, closing, {})

    return made


LIBRARIES = ("plain", "openai", "anthropic")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("library", LIBRARIES)
async def test_streams_that_are_open_when_a_worker_drains_come_to_their_end(fleet_of: FleetOf, library: str) -> None:
    async with fleet_of(library, LONG_S) as fleet:
        await fleet.issue(TASKS)
        leaving = await fleet.join()
        await fleet.all_stream(leaving, TASKS * GROUP)
        # Nothing can come to its end before the worker is told.
        await leaving.client.pause("in_place", timeout_s=D)
        leaving.pod.tell_to_leave()
        await eventually(lambda: leaving.says("draining"), timeout_s=D)
        assert leaving.tap.open_streams > 0
        await leaving.client.resume(timeout_s=D)
        await eventually(leaving.pod.left_well, timeout_s=D)
        assert await fleet.job.settled()
        assert not await keys(KeyValue(fleet.job.bus, fleet.job.topology.hand_backs), deadline_s=D)
        rows = await fleet.check(TASKS)
        assert all(row.turns == TURNS for row in rows)
        assert not fleet.agents()


@pytest.mark.parametrize("library", LIBRARIES)
async def test_streams_that_are_still_open_after_the_grace_period_are_handed_back_with_their_episodes(
    fleet_of: FleetOf, library: str
) -> None:
    async with fleet_of(library, SHORT_S) as fleet:
        await fleet.issue(TASKS)
        leaving = await fleet.join()
        await fleet.all_stream(leaving, TASKS * GROUP)
        await leaving.client.pause("in_place", timeout_s=D)
        await leaving.pod.leave()
        assert not fleet.agents(), "nobody is left who would be told that it is over"
        assert await fleet.job.tasks_left() == TASKS
        assert not await fleet.job.trajectories(), "half an episode is none"
        assert len(await keys(KeyValue(fleet.job.bus, fleet.job.topology.hand_backs), deadline_s=D)) == TASKS
        await leaving.client.resume(timeout_s=D)

        async def idle() -> bool:
            load = await leaving.client.load(timeout_s=D)
            return load.running + load.waiting == 0

        await eventually(idle, timeout_s=D)
        taking = await fleet.join()
        await eventually(fleet.settled, timeout_s=D)
        await taking.pod.leave()
        rows = await fleet.check(TASKS)
        assert {row.worker for row in rows} == {taking.pod.name}
        assert all(row.turns == TURNS for row in rows)


def _by_task(rows: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    found: dict[str, list[Trajectory]] = defaultdict(list)
    for row in rows:
        found[row.task_id].append(row)
    return found


def _said(row: Trajectory, decode: Callable[[list[int]], str]) -> list[str]:
    """What the policy said in each turn."""
    said: list[list[int]] = []
    at, spoke = 0, False
    for span in row.spans:
        speaks = span.version is not None
        if speaks:
            said += [] if spoke else [[]]
            said[-1] += row.token_ids[at : at + span.length].tolist()
        at, spoke = at + span.length, speaks
    return [decode(turn) for turn in said]
