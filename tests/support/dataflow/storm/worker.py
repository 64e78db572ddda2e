"""Rollout workers without models: the real worker and its group runner, with samplers that only take their time.

They note what the server acknowledged, repeat themselves past its memory of ids, and die between the last
acknowledgement and the end of their task.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from tests.support.dataflow.storm.leaving import on_sigterm
from tests.support.dataflow.storm.site import MIN_TOKENS, STALENESS, STEP_S, Dying, Site, Stored
from tests.support.rollout.speakers import role
from tests.support.rollout.unused_claims import unused_claims
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.header import headers
from trimtab.fabric.wire.spans import merged, model_span
from trimtab.fabric.wire.trajectory import Trajectory
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.policy.freshness import Freshness
from trimtab.rollout.policy.sampler import Completion, Listener, PolicySampler
from trimtab.rollout.worker.concurrency import Concurrency
from trimtab.rollout.worker.deliveries import HandBacks, TaskServer
from trimtab.rollout.worker.episodes import GroupRunner, Origin
from trimtab.rollout.worker.metrics import RolloutMetrics
from trimtab.rollout.worker.quarantine import Quarantine
from trimtab.rollout.worker.worker import Worker
from trimtab.rollout.workflows.containment import Containment
from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team

_MAX_TASKS = 4
_LEASE_S = 4.0
_MAX_DELIVERIES = 2
# Of which the worker keeps five to hand back what it has not finished: the slowest never finish a group in the rest.
_GRACE_S = 6.0
_PUBLISH_DEADLINE_S = 60.0
# These workers say nothing of their weights, so they are given tasks however old those are.
_FRESH = Freshness({}, max_staleness=STALENESS)
_REPEATED = 0.02
"""Share of trajectories that are stored a second time under another id."""
_REPEATED_LATER = 0.1
"""Share of groups after which an earlier one is stored a second time, under other ids: by then it may be trained."""
_REMEMBERED = 16
_EMPTY = 0.05
"""Share of episodes in which a role has nothing to learn."""
_SILENT_POLICY = "judge"
_MAX_ROWS = 5
_DIES_HALFWAY = 0.01
"""Share of groups in the midst of whose rows the worker dies: another run of them is what counts."""
_DIES = 0.01
"""Share of groups after whose last trajectory the worker dies, with the task still its own."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One worker: how many groups it does in a second, and for how long it holds on to old weights."""

    name: str
    groups_per_s: float
    lag_s: float
    joins_at_s: float = 0.0


class Fate(StrEnum):
    WELL = "well"
    FAILS = "fails"
    SHORT = "short"
    SILENT = "silent"
    """One of the policies has nothing to learn from it, in any episode."""


def fate(task_id: str) -> Fate:
    """Of all attempts at a task, whoever makes them."""
    draw = random.Random(task_id).random()
    return Fate.FAILS if draw < 0.05 else Fate.SHORT if draw < 0.08 else Fate.SILENT if draw < 0.11 else Fate.WELL


class SlowSampler(PolicySampler):
    """Takes its time for some tokens, with the weights that it believes to be the newest; now and then it gets newer
    ones on the way.
    """

    def __init__(self, site: Site, policy: str, *, seconds: float, lag_s: float) -> None:
        self._newest = site.version(policy)
        self._seconds = seconds
        self._lag_s = lag_s
        self._known = 0
        self._read_at = float("-inf")

    async def complete(
        self,
        prompt: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        deadline_s: float,
        listener: Listener | None = None,
    ) -> Completion:
        chance = random.Random(f"{settings.seed}")
        short = fate(request_id.split(".")[0]) is Fate.SHORT
        length = MIN_TOKENS - 1 if short else MIN_TOKENS + chance.randrange(5)
        begun = self._version()
        await asyncio.sleep(self._seconds * chance.uniform(0.5, 1.5))
        old = chance.randrange(length) if chance.random() < 0.3 else length
        spans = [model_span(old, version=begun)] if old else []
        if old < length:
            spans.append(model_span(length - old, version=self._version()))
        return Completion(token_ids=tuple(range(length)), logprobs=(-0.5,) * length, spans=merged(spans), finish="stop")

    def _version(self) -> int:
        now = time.monotonic()
        if now - self._read_at >= self._lag_s:
            self._known, self._read_at = self._newest.read(), now
        return self._known


class AllSpeak:
    """A workflow in which every policy answers the prompt, mostly in conversations that branch: a role has none to five
    rows. How many is drawn anew in every run, as sampled words are, so that rows of two runs do not fit together.
    """

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        own_fate = fate(assignment.request_id.split(".")[0])
        if own_fate is Fate.FAILS:
            raise RuntimeError("this prompt breaks its tool")
        chance = random.SystemRandom()
        reward = random.Random(assignment.seed).random()
        scored = []
        for policy in STEP_S:
            conversation = team.begin(policy)
            conversation.hear(str(assignment.prompt["prompt"]))
            await conversation.speak()
            if chance.random() < _EMPTY or (own_fate is Fate.SILENT and policy == _SILENT_POLICY):
                continue
            # Two short rows would be as long as a filter asks an episode to be.
            branches = [
                conversation.fork() for _ in range(chance.randrange(_MAX_ROWS) if own_fate is not Fate.SHORT else 0)
            ]
            for branch in branches:
                branch.hear("?")
            await asyncio.gather(*(branch.speak() for branch in branches))
            scored += [ScoredConversation(one, reward=reward) for one in (conversation, *branches)]
        return Episode(tuple(scored))


class NotingServer(TaskServer):
    """Stores trajectories one by one, so that a kill leaves any part of a group behind."""

    def __init__(self, bus: Bus, site: Site, profile: Profile, *, life: int) -> None:
        seconds = _MAX_TASKS / profile.groups_per_s / len(STEP_S)
        roles = {
            policy: role(SlowSampler(site, policy, seconds=seconds, lag_s=profile.lag_s), policy, policy=policy)
            for policy in STEP_S
        }
        origin = Origin(worker=profile.name, pool="local", engine="none")
        metrics = RolloutMetrics(Metrics())
        super().__init__(
            bus,
            site.topology,
            GroupRunner(AllSpeak(), roles, origin, Containment(), metrics, episode_timeout_s=600.0, clock=time.time),
            Quarantine(KeyValue(bus, site.topology.quarantine), origin, job=site.topology.job, clock=time.time),
            HandBacks(KeyValue(bus, site.topology.hand_backs)),
            _FRESH,
            metrics,
            unused_claims(),
            lease_s=_LEASE_S,
            max_deliveries=_MAX_DELIVERIES,
            clock=time.monotonic,
        )
        self._site = site
        self._name = profile.name
        self._life = life
        self._chance = random.Random(f"{profile.name}/{life}")
        self._earlier: deque[Sequence[Trajectory]] = deque(maxlen=_REMEMBERED)

    async def _publish(self, trajectories: Sequence[Trajectory]) -> None:
        last = self._chance.randrange(len(trajectories)) if self._chance.random() < _DIES_HALFWAY else None
        for number, trajectory in enumerate(trajectories):
            if number == last:
                os.kill(os.getpid(), signal.SIGKILL)
            copies = [trajectory]
            if self._chance.random() < _REPEATED:
                copies.insert(self._chance.randrange(2), self._under_another_id(trajectory))
            for copy in copies:
                await self._store(copy)
        self._earlier.append(trajectories)
        if self._chance.random() < _REPEATED_LATER:
            for trajectory in self._earlier.popleft():
                await self._store(self._under_another_id(trajectory))
        if self._chance.random() < _DIES:
            self._site.note(self._name, Dying(trajectories[0].task_id))
            os.kill(os.getpid(), signal.SIGKILL)

    def _under_another_id(self, trajectory: Trajectory) -> Trajectory:
        """Past the server's memory of ids: only the ledger can tell that it had this one."""
        other_id = f"{trajectory.trajectory_id}+{self._name}.{self._life}"
        return msgspec.structs.replace(trajectory, trajectory_id=other_id)

    async def _store(self, trajectory: Trajectory) -> None:
        stored = await publish(
            self._bus,
            self._topology.trajectory_subject(trajectory.policy),
            encode(trajectory),
            message_id=trajectory.message_id,
            headers=headers(trajectory),
            deadline_s=_PUBLISH_DEADLINE_S,
        )
        note = Stored(trajectory.policy, trajectory.group_id, trajectory.group_index, stored.sequence, trajectory.part)
        self._site.note(self._name, note)


def roll_out(site: Site, profile: Profile, life: int) -> None:
    """Until SIGTERM, and then drain."""
    site.write_output_to(profile.name)
    asyncio.run(_roll_out(site, profile, life))


async def _roll_out(site: Site, profile: Profile, life: int) -> None:
    stopping = asyncio.Event()
    on_sigterm(stopping.set)
    async with await Bus.connect(site.nats, name=profile.name) as bus:
        await declare_job(bus, site.topology, deadline_s=_PUBLISH_DEADLINE_S)
        worker = Worker(
            bus,
            site.topology,
            NotingServer(bus, site, profile, life=life),
            _FRESH,
            Concurrency(ceiling=_MAX_TASKS, requests_per_task=1),
            lease_s=_LEASE_S,
            grace_s=_GRACE_S,
            clock=time.monotonic,
        )
        await worker.run(stopping)
