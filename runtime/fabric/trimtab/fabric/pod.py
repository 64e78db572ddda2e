"""What every pod does before and after its own work: settings, logs, the manifest, a bus, probes, a signal to end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from trimtab.api.job import RLJob
from trimtab.api.manifest import read_manifest
from trimtab.api.validation import is_ours, parse
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.logs import REDACTOR, configure_logs
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.probes import Probes
from trimtab.fabric.settings import Settings, SettingsError, load_settings, secret_values
from trimtab.fabric.sources.wants import located

_log = structlog.get_logger(__name__)
_LIVENESS_BEAT_S = 1.0
EXIT_MISCONFIGURED = 78
"""EX_CONFIG of sysexits.h: the manifest or the settings are wrong, so starting the pod again would not help."""


class JobMisconfigured(ValueError):
    """The job cannot run as its manifest describes it; the message names the field and the fix."""


class JobPodSettings(Settings):
    """Settings of a pod that works for a job: all of them know its manifest."""

    job_file: Path
    fetched: Path | None = None
    """Where the places of sources are that the manifest names by hf:// and s3://, in jobs that have some."""


S = TypeVar("S", bound=JobPodSettings)


@dataclass(frozen=True, kw_only=True)
class Pod(Generic[S]):
    """A running pod's connections."""

    settings: S
    job: RLJob
    bus: Bus
    topology: JobTopology
    metrics: Metrics
    probes: Probes
    stopping: asyncio.Event
    """Set by SIGTERM and SIGINT: finish or hand back what is under way, and go."""

    @property
    def folder(self) -> Path:
        """What relative paths in the manifest are relative to."""
        return self.settings.job_file.parent


def pod_settings(kind: type[S], **identity: str) -> S:
    """The settings, with logs configured; ends the process with a readable list when they are wrong. Every line of the
    log names the pod, and this process in it by `identity`.
    """
    try:
        settings = load_settings(os.environ, kind)
    except SettingsError as error:
        print(error, file=sys.stderr)  # noqa: T201 - logs are not configured without settings
        sys.exit(EXIT_MISCONFIGURED)
    configure_logs(
        settings.logs,
        stream=sys.stderr,
        secrets=secret_values(settings),
        redactor=REDACTOR,
        job=settings.pod.job,
        role=settings.pod.role,
        pod=settings.pod.name,
        **identity,
    )
    return settings


def run_pod(main: Coroutine[Any, Any, None]) -> None:
    """Run a pod's main coroutine to its end, and say by the exit code when a restart would be useless."""
    try:
        asyncio.run(main)
    except JobMisconfigured as error:
        _log.error("job_misconfigured", reason=str(error))
        sys.exit(EXIT_MISCONFIGURED)


def read_job(path: Path) -> RLJob:
    """The one RLJob in the file, beside which may lie objects of other groups. Raises InvalidManifestError or
    UnreadableManifestError.
    """
    documents = read_manifest(path.read_bytes())
    jobs = [parse(document.value) for document in documents if is_ours(document.value)]
    if len(jobs) != 1 or not isinstance(jobs[0], RLJob):
        raise ValueError(f"{path.name}: expected exactly one RLJob")
    return jobs[0]


def topology_of(settings: Settings, job: RLJob) -> JobTopology:
    stages = tuple(stage.name for stage in job.spec.stages)
    return JobTopology(settings.pod.namespace, settings.pod.job, stages=stages)


@asynccontextmanager
async def running_pod(settings: S, *, signals: Sequence[signal.Signals]) -> AsyncIterator[Pod[S]]:
    """Connect everything and serve probes; on the way out, close in the opposite order."""
    stopping = asyncio.Event()
    for signum in signals:
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    metrics = Metrics()
    probes = Probes(settings.probes, metrics, REDACTOR, clock=time.monotonic)
    bus = await Bus.connect(settings.nats, name=settings.pod.name)
    probes.add_check("nats", lambda: None if bus.state == "connected" else f"NATS: {bus.state}")
    try:
        async with probes:
            alive = asyncio.create_task(_beat(probes))
            try:
                job = read_job(settings.job_file)
                if settings.fetched is not None:
                    job = located(job, str(settings.fetched))
                yield Pod(
                    settings=settings,
                    job=job,
                    bus=bus,
                    topology=topology_of(settings, job),
                    metrics=metrics,
                    probes=probes,
                    stopping=stopping,
                )
            finally:
                alive.cancel()
    finally:
        await bus.close()


async def _beat(probes: Probes) -> None:
    """The loop is alive as long as this task gets its turn."""
    while True:
        probes.beat()
        await asyncio.sleep(_LIVENESS_BEAT_S)
