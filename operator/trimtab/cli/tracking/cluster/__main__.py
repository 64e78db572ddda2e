"""`python -m trimtab.cli.tracking.cluster`: the pod that writes a job's curves to its trackers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path

import structlog

from trimtab.cli.chronicle.file import ChronicleFile
from trimtab.cli.tracking.cluster.listening import JobListener
from trimtab.cli.tracking.cluster.notebook import Notebook
from trimtab.cli.tracking.cluster.telling import Telling
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.fabric.pod import JobMisconfigured, JobPodSettings, Pod, pod_settings, run_pod, running_pod

_log = structlog.get_logger(__name__)
_LOOK_S = 1.0
_OPEN_PAUSE_S = 5.0
# Together less than the pod's grace period, plan/job_pods.py.
_LAST_READ_S = 10.0
_PATIENCE_S = 60.0
_TELL_S = 90.0
_LAST_SAVE_S = 15.0


class TrackingPodSettings(JobPodSettings):
    """`scratch` is where the history is written while the pod lives."""

    scratch: Path


async def main(settings: TrackingPodSettings) -> None:
    async with running_pod(settings, signals=(signal.SIGTERM, signal.SIGINT)) as pod:
        trackers = [tracker.type for tracker in pod.job.spec.tracking]
        if not trackers:
            raise JobMisconfigured("spec.tracking: empty; there is nothing to tell")
        async with ObjectStore(settings.object_store) as store:
            await _tell(pod, Notebook(store, settings.scratch, trackers))


async def _tell(pod: Pod[TrackingPodSettings], notebook: Notebook) -> None:
    folder, heard = pod.settings.scratch, None
    while heard is None:
        try:
            heard = await notebook.open()
        except ObjectStoreError as error:
            # Without it trackers would be told all of it once more, as other runs.
            _log.warning("notebook_not_opened", reason=str(error))
            if await _stopped_within(pod, _OPEN_PAUSE_S):
                return
    tellings = [
        Telling(tracker.type, job_file=pod.settings.job_file, folder=folder, patience_s=_PATIENCE_S)
        for tracker in pod.job.spec.tracking
    ]
    for telling in tellings:
        pod.probes.add_check(telling.tracker, lambda telling=telling: telling.trouble)  # type: ignore[misc]
    with ChronicleFile(folder) as file:
        listener = JobListener(pod.bus, pod.topology, pod.job, file=file, heard=heard, clock=time.time)
        running = [asyncio.create_task(telling.run()) for telling in tellings]
        listening = asyncio.create_task(listener.listen())
        try:
            while not await _stopped_within(pod, _LOOK_S):
                if listening.done():
                    listening.result()
                await notebook.save(listener.heard, now=time.monotonic())
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await listener.finish(deadline_s=_LAST_READ_S)
            # They read to the end of the file, which is written now.
            in_time = await asyncio.gather(*(telling.stop(within_s=_TELL_S) for telling in tellings))
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SAVE_S):
                    await notebook.save(listener.heard, now=time.monotonic(), at_once=True)
            for telling, ended in zip(tellings, in_time, strict=True):
                if not ended:
                    _log.warning("tracker_not_told", tracker=telling.tracker, reason="it did not take all in time")


async def _stopped_within(pod: Pod[TrackingPodSettings], seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await pod.stopping.wait()
    return pod.stopping.is_set()


if __name__ == "__main__":
    run_pod(main(pod_settings(TrackingPodSettings)))
