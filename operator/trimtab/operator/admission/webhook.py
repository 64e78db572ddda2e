"""kopf's webhook server, in a thread of its own, started again when it has failed.

The API server goes on without it: an object that it could not ask about is accepted, and judged when it is reconciled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import kopf
import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.daemon_thread import in_daemon_thread
from trimtab.fabric.restarts import RestartPolicy
from trimtab.kube.access import ClusterAccess
from trimtab.kube.client import KubeClient
from trimtab.operator.admission.certificates import CERTIFICATE, KEY, WebhookCertificate
from trimtab.operator.admission.handlers import OnReview, admission_handlers
from trimtab.operator.settings import AdmissionSettings

_log = structlog.get_logger(__name__)
_FILE_CHECK_S = 10.0
# It waits five seconds itself for tasks that do not end.
_ENDS_WITHIN_S = 8.0
_RESTARTS = RestartPolicy(backoff=FullJitter(base_s=1.0, cap_s=30.0), stable_s=60.0)
"""One that lived that long does not fail again and again."""


async def serve_admission(
    settings: AdmissionSettings | None,
    access: ClusterAccess,
    client: KubeClient,
    *,
    on_review: OnReview,
    told_to_stop: asyncio.Event,
) -> None:
    """Until it is told to stop."""
    handlers = partial(admission_handlers, access, on_review=on_review)
    if settings is None:
        await told_to_stop.wait()
    elif settings.certificate_folder is not None:
        server = partial(server_for, settings, settings.certificate_folder)
        await run_webhook(handlers, server=server, told_to_stop=told_to_stop)
    else:
        with tempfile.TemporaryDirectory() as folder:
            certificate = WebhookCertificate(client, settings, Path(folder), clock=time.time)
            keeping = asyncio.create_task(certificate.keep(), name="webhook certificate")
            waits = {asyncio.create_task(event.wait()) for event in (certificate.ready, told_to_stop)}
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                server = partial(server_for, settings, Path(folder))
                await run_webhook(handlers, server=server, told_to_stop=told_to_stop)
            finally:
                for task in (keeping, *waits):
                    task.cancel()


async def run_webhook(
    handlers: Callable[[], kopf.OperatorRegistry],
    *,
    server: Callable[[], kopf.WebhookServer],
    told_to_stop: asyncio.Event,
    ends_within_s: float = _ENDS_WITHIN_S,
    restarts: RestartPolicy = _RESTARTS,
) -> None:
    """Until it is told to stop, and then not much longer, whatever kopf still waits for.

    kopf has a loop and a thread of its own: when it fails, it cancels every task of its loop, not only its own, and it
    may wait for one of them for ever.
    """
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # It warns that signals do not reach this thread. They are not meant to.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    loop = asyncio.get_running_loop()
    told = asyncio.create_task(told_to_stop.wait())
    crashes = 0
    shell: asyncio.Task[None] | None = None
    try:
        while not told_to_stop.is_set():
            life = _KopfLife(handlers(), server())
            began = loop.time()
            shell = asyncio.create_task(in_daemon_thread(life.live, name="kopf"))
            await asyncio.wait({shell, told}, return_when=asyncio.FIRST_COMPLETED)
            if told_to_stop.is_set():
                life.end()
                await asyncio.wait({shell}, timeout=ends_within_s)
                if not shell.done():
                    _log.warning("webhook_does_not_end", waited_s=ends_within_s)
                return
            now = loop.time()
            again = restarts.again(crashes, lived_s=now - began, now=now)
            crashes, delay_s = again.crashes, again.wait_s(now)
            _log.warning("webhook_ended", error=repr(shell.exception()), again_in_s=round(delay_s, 1))
            await asyncio.wait({told}, timeout=delay_s)
    finally:
        told.cancel()
        if shell is not None:
            shell.cancel()


class _KopfLife:
    """kopf from its start to its end."""

    def __init__(self, handlers: kopf.OperatorRegistry, server: kopf.WebhookServer) -> None:
        self._handlers = handlers
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()

    def live(self) -> None:
        """In the thread that is to be kopf's."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(
                kopf.operator(
                    registry=self._handlers,
                    settings=_settings(self._server),
                    standalone=True,
                    clusterwide=True,
                    stop_flag=self._stop,
                )
            )

    def end(self) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop.set)


def server_for(settings: AdmissionSettings, folder: Path) -> kopf.WebhookServer:
    """It shows the certificate in `folder`, and looks there whether it was renewed."""
    return kopf.WebhookServer(
        addr=settings.host or None,
        port=settings.port,
        certfile=folder / CERTIFICATE,
        pkeyfile=folder / KEY,
        file_check_interval=_FILE_CHECK_S,
    )


def _settings(server: kopf.WebhookServer) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.admission.server = server
    # Otherwise a kopf that does not come to its end kills the process ten minutes later.
    settings.process.ultimate_exiting_timeout = None
    return settings
