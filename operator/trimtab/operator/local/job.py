"""One RLJob on this machine: embedded servers, the same plan as in a cluster, pods as processes."""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import shutil
import time
from pathlib import Path
from typing import Protocol

import structlog
from pydantic import BaseModel, SecretStr

from trimtab.api.autoscaling import AutoscalingStatus
from trimtab.api.job import RLJob
from trimtab.api.scalars import SecretKey
from trimtab.embedded.disk_room import DiskRoom
from trimtab.embedded.nats_server import SYNC_INTERVAL_S, EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.durable_files import replace_file
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.pointers import mend_pointers
from trimtab.fabric.settings import (
    LedgerSettings,
    LogSettings,
    NatsSettings,
    ObjectStoreSettings,
    ProbeSettings,
    ResumeSettings,
    WeightSettings,
    environment_for,
    write_secrets,
)
from trimtab.fabric.signing import Signer
from trimtab.operator.autoscale.agent.egress import Egress
from trimtab.operator.autoscale.agent.maintainer import AgentMaintainers, KeyMissing
from trimtab.operator.autoscale.agent.transcripts import TranscriptFolder
from trimtab.operator.job_watch import JobMessage, JobWatch
from trimtab.operator.local.executor import LocalExecutor, SecretMissing, secret_value
from trimtab.operator.local.objects import LocalObjects
from trimtab.operator.local.state_files import (
    ATTEMPTS_FILE,
    ENVIRONMENT_FILE,
    LEDGER_KEY_FILE,
    RESUME_FILE,
    RESUME_FOLDER,
    SEED_FILE,
)
from trimtab.operator.plan.progress import JobReport
from trimtab.operator.plan.room import Room, size_text
from trimtab.operator.stream_limits import StreamDefaults, stream_limits

_log = structlog.get_logger(__name__)
_INTERVAL_S = 0.1
_DISK_INTERVAL_S = 1.0
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_TRANSCRIPTS = 50


def disk_shortage(folder: Path, room: DiskRoom) -> Room:
    return Room(
        reason="DiskFull",
        shortage=f"the disk of {folder} has {size_text(room.free_bytes or 0)} left, no new tasks are admitted; free"
        f" {size_text(room.limits.enough_bytes)} there, and the job goes on by itself",
    )


async def _api_key(namespace: str, secret: SecretKey) -> str:
    try:
        return secret_value(secret, os.environ)
    except SecretMissing as missing:
        raise KeyMissing(str(missing)) from None


class JobFailed(RuntimeError):
    """The job was given up; the message says why."""


class Audience(Protocol):
    """Is told what happens, as it happens."""

    def on_message(self, message: JobMessage) -> None:
        """The job said something of itself on the bus."""

    def on_rescaled(self, decision: AutoscalingStatus) -> None:
        """The autoscaler changed the fleet."""


class _Surroundings(BaseModel):
    """The part of a pod's settings that is the same for all pods of the job."""

    nats: NatsSettings
    object_store: ObjectStoreSettings
    weights: WeightSettings
    ledger: LedgerSettings
    resume: ResumeSettings | None
    logs: LogSettings
    probes: ProbeSettings


class LocalJob:
    """Everything that runs for a job on one machine. Enter it, `run` it, and leave it with nothing behind."""

    def __init__(self, job: RLJob, *, job_file: Path, folder: Path, audience: Audience | None = None) -> None:
        self.job = job
        self._audience = audience
        self.folder = folder
        self.nats = EmbeddedNats(folder / "nats")
        self.store = EmbeddedSeaweed(folder / "seaweedfs")
        self._job_file = job_file
        self._maintainers = AgentMaintainers(
            read_key=_api_key,
            transcripts=TranscriptFolder(folder / "transcripts", newest=_TRANSCRIPTS),
            on_reply=lambda key, reply: _log.info("agent_replied", reply=reply),
            egress=Egress(anywhere=True),
        )
        self.objects = LocalObjects(
            job,
            attempts_file=folder / ATTEMPTS_FILE,
            maintainers=self._maintainers,
            rescaled=None if audience is None else audience.on_rescaled,
        )
        self._executor: LocalExecutor | None = None
        self.watch: JobWatch | None = None
        self._disk_due = 0.0
        self._has_dropped = False

    @property
    def executor(self) -> LocalExecutor:
        assert self._executor is not None, "the job is not running"
        return self._executor

    @property
    def topology(self) -> JobTopology:
        stages = tuple(stage.name for stage in self.job.spec.stages)
        return JobTopology(self.job.metadata.namespace or "default", self.job.metadata.name, stages=stages)

    async def run(self, stopping: asyncio.Event) -> bool:
        """Until the job ends or `stopping` is set; either way all pods have ended when it returns.

        Says whether the job has succeeded. Raises JobFailed when it was given up.
        """
        try:
            await self._start_servers()
            bus = await Bus.connect(self.nats.settings, name="trimtab-run")
            limits = stream_limits(self.job.spec.streams, StreamDefaults(), storage_bytes=None)
            watch = JobWatch(
                bus,
                self.topology.limited(limits),
                [policy.name for policy in self.job.spec.learning],
                sync=SYNC_INTERVAL_S,
                listener=None if self._audience is None else self._audience.on_message,
            )
            watching = asyncio.create_task(watch.run())
            self.watch = watch
            self._executor = self._make_executor()
            try:
                return await self._reconcile(stopping, watching)
            finally:
                self._executor.kill_all()
                await self._maintainers.close()
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                await bus.close()
        finally:
            await asyncio.gather(asyncio.to_thread(self.nats.stop), asyncio.to_thread(self.store.stop))

    async def _start_servers(self) -> None:
        """Both are waited for also when one fails: a server must not come up after it was stopped."""
        outcomes = await asyncio.gather(
            asyncio.to_thread(self.nats.start), asyncio.to_thread(self.store.start), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        async with ObjectStore(self._object_store()) as store:
            await mend_pointers(store, "checkpoints/", removes=False)
            await mend_pointers(store, "weights/", removes=True)

    async def _reconcile(self, stopping: asyncio.Event, watching: asyncio.Task[None]) -> bool:
        executor, objects = self.executor, self.objects
        while True:
            self._look_at_disk()
            await self._drop_other_checkpoint()
            executor.tend()
            pods = executor.observe()
            if stopping.is_set():
                objects.suspend()
            try:
                executor.apply(objects.reconcile(pods, self._report(), now=time.time()))
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                # What could not be written down is planned anew, until there is room.
                _log.warning("no_room_to_reconcile", error=str(error))
            running = any(not pod.ended for pod in executor.observe())
            if not running and objects.failure is not None:
                raise JobFailed(objects.failure)
            if not running and (objects.succeeded or stopping.is_set()):
                return objects.succeeded
            if watching.done():
                watching.result()
            await asyncio.sleep(_INTERVAL_S)

    @property
    def shortage(self) -> str | None:
        """Why its storage takes no more, for people; None when it does."""
        room = None if self.watch is None else self.watch.room
        return None if room is None else room.shortage

    def _look_at_disk(self) -> None:
        now = time.monotonic()
        if self.watch is None or now < self._disk_due:
            return
        self._disk_due = now + _DISK_INTERVAL_S
        room = self.nats.look_at_disk()
        self.watch.disk_shortage = disk_shortage(self.folder, room) if room.is_short else None

    async def _drop_other_checkpoint(self) -> None:
        """The copy of what the job began at. A policy that has made a step had a checkpoint of its own on the disk
        before, and goes on from that after a restart."""
        if self._has_dropped or self.watch is None or not all(one.steps for one in self.watch.policies.values()):
            return
        self._has_dropped, copy = True, self.folder / RESUME_FOLDER
        # One that cannot be deleted takes room, and nothing else.
        await asyncio.to_thread(shutil.rmtree, copy, ignore_errors=True)

    def _report(self) -> JobReport:
        if self.watch is None:
            return JobReport()
        return self.watch.report(window=self.job.spec.autoscaling.window_steps)

    def _make_executor(self) -> LocalExecutor:
        secrets = self.folder / "secrets"
        shutil.rmtree(secrets, ignore_errors=True)
        surroundings = _Surroundings(
            nats=self.nats.settings,
            object_store=self._object_store(),
            weights=self._weight_keys(),
            ledger=self._ledger_key(),
            resume=self._origin(),
            logs=LogSettings(format="json"),
            # Any free port, and for this machine only.
            probes=ProbeSettings(host="127.0.0.1", port=0),
        )
        write_secrets(surroundings, secrets)
        environment = environment_for(surroundings, secrets_dir=secrets)
        # For people: with this, commands such as `trimtab weights` find the servers of the running job.
        (self.folder / ENVIRONMENT_FILE).write_text(
            "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(environment.items()))
        )
        # Pods share two cores here: more threads than that only get in each other's way.
        environment |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        return LocalExecutor(self.folder, job_file=self._job_file, environment=environment, clock=time.time)

    def _object_store(self) -> ObjectStoreSettings:
        return self.store.settings.model_copy(
            update={
                "prefix": f"{self.topology.namespace}/{self.topology.job}",
                "unsynced_folder": self.store.data_folder,
            }
        )

    def _weight_keys(self) -> WeightSettings:
        """The key that this job's trainers sign with. It stays with the job, whose weights outlive a run."""
        seed = self._kept(SEED_FILE)
        return WeightSettings(signing_seed=SecretStr(seed), public_keys=(Signer(seed).public_text,))

    def _ledger_key(self) -> LedgerSettings:
        """By which its dataflow knows its own records after a restart."""
        return LedgerSettings(key=SecretStr(self._kept(LEDGER_KEY_FILE)))

    def _origin(self) -> ResumeSettings | None:
        """Where the job begins, if it is at a checkpoint of another one that was looked up for it."""
        file = self.folder / RESUME_FILE
        return ResumeSettings.model_validate_json(file.read_bytes()) if file.exists() else None

    def _kept(self, name: str) -> str:
        """A secret of 32 bytes in base64, made at the first run."""
        file = self.folder / name
        if not file.exists():
            replace_file(file, Signer.generate().reveal_seed().encode(), mode=0o600)
        return file.read_text(encoding="utf-8")
