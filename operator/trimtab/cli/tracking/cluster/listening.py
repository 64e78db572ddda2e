"""Writes down what a job says of itself on the bus, as `trimtab run` does for its own, from a user that may only read.

What is heard again after a pause is known by its number and time, so that it is written down once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

import msgspec
import structlog

from trimtab.api.job import RLJob
from trimtab.cli.chronicle import records
from trimtab.cli.chronicle.file import ChronicleFile
from trimtab.cli.chronicle.records import Died, Fleet, Measured, Record, Rescaled, Score, Step, Version, Window
from trimtab.cli.chronicle.spending import cost_per_hour
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import StoredMessage
from trimtab.fabric.bus.direct_reader import DirectReader
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.fleet_note import FleetNote, read_fleet_note
from trimtab.fabric.bus.keyvalue import KeyValue, is_removal
from trimtab.fabric.bus.topology import BucketSpec, JobTopology
from trimtab.fabric.members import MemberTable
from trimtab.fabric.wire.balance import BalanceReport
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.fabric.wire.member import Role, State
from trimtab.fabric.wire.progress import StepProgress
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.operator.job_watch import JobMessage

_log = structlog.get_logger(__name__)
_BATCH = 256
_WAIT_S = 30.0
_LOOK_S = 1.0
_NOTE_LOOK_S = 2.0
_NOTE_DEADLINE_S = 10.0
_DECLARE_S = 600.0
_BACKOFF = FullJitter(base_s=1.0, cap_s=30.0)


class Latest(msgspec.Struct, frozen=True):
    number: int
    at: float


class Heard(msgspec.Struct, kw_only=True):
    """The newest that was written down of each kind."""

    messages: dict[str, Latest] = msgspec.field(default_factory=dict)
    measured: dict[str, int] = msgspec.field(default_factory=dict)
    """By policy, the step."""
    ready: dict[str, int] = msgspec.field(default_factory=dict)
    """By pool."""
    wanted: dict[str, int] = msgspec.field(default_factory=dict)
    """By pool."""

    def recall(self, record: Record) -> None:
        """It was written down before."""
        match record:
            case Measured():
                self.measured[record.policy] = record.step
            case Fleet():
                self.ready, self.wanted = dict(record.ready), dict(record.wanted)
            case _:
                self.is_new(record)

    def is_new(self, record: Record) -> bool:
        """And remembers it."""
        match record:
            case Step():
                name, number = f"step/{record.policy}", record.step
            case Window():
                name, number = f"window/{record.policy}", record.last_step
            case Version():
                name, number = f"version/{record.policy}", record.version
            case Score():
                name, number = f"score/{record.policy}/{record.benchmark}", record.version
            case Rescaled():
                name, number = "rescaled", 0
            case Died():
                name, number = f"died/{record.pod}", 0
            case _:
                return True
        before = self.messages.get(name)
        # Later on either: a trainer that begins at a checkpoint counts from there, and clocks of nodes differ.
        if before is not None and number <= before.number and record.at <= before.at:
            return False
        self.messages[name] = Latest(number, record.at)
        return True


class JobListener:
    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        job: RLJob,
        *,
        file: ChronicleFile,
        heard: Heard,
        clock: Callable[[], float],
    ) -> None:
        policies = [policy.name for policy in job.spec.learning]
        self.heard = heard
        self._bus = bus
        self._topology = topology
        self._job = job
        self._pools = [pool.name for pool in job.spec.pools]
        self._kinds: Mapping[str, type[StepProgress] | type[BalanceReport]] = {
            **{topology.progress_key(policy): StepProgress for policy in policies},
            **{topology.report_key(policy): BalanceReport for policy in policies},
        }
        self._policies = frozenset(policies)
        self._file = file
        self._clock = clock
        self._wanted = dict(heard.wanted)
        self._members = MemberTable(ttl_s=topology.member_ttl_s, clock=time.monotonic)
        self._readers = {
            bucket.name: DirectReader(bus, stream=bucket.stream, subject=f"$KV.{bucket.name}.>")
            for bucket in (topology.balance, topology.weights)
        }

    async def listen(self) -> None:
        """Until cancelled. An outage of the bus is ridden out: what it has kept is read afterwards."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._follow(self._topology.balance))
            loops.create_task(self._follow(self._topology.weights))
            loops.create_task(self._follow_members())
            loops.create_task(self._follow_note())
            loops.create_task(self._keep_observing())

    async def finish(self, *, deadline_s: float) -> None:
        """After `listen`: what was said since the last look."""
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(deadline_s):
                for bucket in (self._topology.balance, self._topology.weights):
                    while messages := await self._readers[bucket.name].read(batch=_BATCH, wait_s=0.0):
                        self._take_all(bucket, messages)
                self.take_note(await read_fleet_note(self._bus, self._topology, deadline_s=deadline_s))
        for reader in self._readers.values():
            await reader.close()

    async def _follow(self, bucket: BucketSpec) -> None:
        await KeyValue.declare(self._bus, bucket, deadline_s=_DECLARE_S)
        reader, failures = self._readers[bucket.name], 0
        while True:
            try:
                self._take_all(bucket, await reader.read(batch=_BATCH, wait_s=_WAIT_S))
                failures = 0
            except BusError as error:
                _log.warning("listening_interrupted", bucket=bucket.name, error=str(error))
                await asyncio.sleep(_BACKOFF.delay_s(failures))
                failures += 1

    async def _follow_members(self) -> None:
        failures = 0
        members = await KeyValue.declare(self._bus, self._topology.members, deadline_s=_DECLARE_S)
        while True:
            try:
                await self._members.follow(members)
            except BusError as error:
                _log.warning("listening_interrupted", bucket=self._topology.members.name, error=str(error))
                await asyncio.sleep(_BACKOFF.delay_s(failures))
                failures += 1

    async def _follow_note(self) -> None:
        """The operator's, which nothing rings for: it changes now and then."""
        await KeyValue.declare(self._bus, self._topology.balance, deadline_s=_DECLARE_S)
        failures = 0
        while True:
            try:
                self.take_note(await read_fleet_note(self._bus, self._topology, deadline_s=_NOTE_DEADLINE_S))
                failures = 0
                await asyncio.sleep(_NOTE_LOOK_S)
            except BusError as error:
                _log.warning("listening_interrupted", note="fleet", error=str(error))
                await asyncio.sleep(_BACKOFF.delay_s(failures))
                failures += 1

    def take_note(self, note: FleetNote) -> None:
        """What the operator knows of the fleet: each decision and failure once."""
        self._wanted = {pool: count for pool, count in note.wanted.items() if pool in self._pools}
        for record in records.of_note(note):
            self._note(record)

    def _take_all(self, bucket: BucketSpec, messages: list[StoredMessage]) -> None:
        prefix = len(f"$KV.{bucket.name}.")
        for message in messages:
            if not is_removal(message.headers):
                self.take(bucket, message.subject[prefix:], message.payload)

    def take(self, bucket: BucketSpec, key: str, value: bytes) -> None:
        """One value of a bucket. What cannot be read is left out: others write it."""
        try:
            message = self._read(bucket, key, value)
        except WireError as error:
            _log.warning("message_unreadable", bucket=bucket.name, key=key, reason=str(error))
            return
        if message is not None:
            self._note(records.of_message(message))

    def _read(self, bucket: BucketSpec, key: str, value: bytes) -> JobMessage | None:
        message: JobMessage
        if bucket == self._topology.weights:
            message = decode(value, WeightPointer)
        elif key in self._kinds:
            message = decode(value, self._kinds[key])
        elif ".evaluation." in key:
            message = decode(value, EvaluationResult)
        else:
            return None
        return message if message.policy in self._policies else None

    async def _keep_observing(self) -> None:
        while True:
            self.observe()
            await asyncio.sleep(_LOOK_S)

    def observe(self) -> None:
        """How many workers serve, by their heartbeats, and how many are wanted; how the trainers' newest steps were."""
        ready = dict.fromkeys(self._pools, 0)
        for member in self._members.present:
            if member.role is Role.ROLLOUT and member.state is State.READY and member.pool in ready:
                ready[member.pool] += 1
            if member.role is not Role.TRAINER or not member.measures:
                continue
            for policy, step in member.versions.items():
                if policy in self._policies and self.heard.measured.get(policy) != step:
                    self.heard.measured[policy] = step
                    rate = member.tokens_per_second
                    at = self._clock()
                    self._note(
                        Measured(at=at, policy=policy, step=step, values=member.measures, tokens_per_second=rate)
                    )
        if (ready, self._wanted) != (self.heard.ready, self.heard.wanted):
            self.heard.ready, self.heard.wanted = ready, self._wanted
            cost = cost_per_hour(self._job, ready)
            self._note(Fleet(at=self._clock(), ready=ready, wanted=self._wanted, cost_per_hour=cost))

    def _note(self, record: Record) -> None:
        if self.heard.is_new(record):
            self._file.append(record)
