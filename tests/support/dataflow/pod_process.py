"""The dataflow pod of a simulated job as a process of its own that can be frozen, as a node is that has died: its
connections stay open, and nothing comes from it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pydantic import SecretStr

from tests.support.dataflow.jobs import job
from tests.support.dataflow.simulation import SIGNER, Simulation
from tests.support.template_process import TemplateProcess
from trimtab.dataflow.__main__ import DataflowPodSettings, main
from trimtab.fabric.pod import JobPodSettings, pod_settings, run_pod
from trimtab.fabric.settings import (
    LedgerSettings,
    ObjectStoreSettings,
    PodSettings,
    ProbeSettings,
    WeightSettings,
    environment_for,
)

KEY = "the dataflow of every simulation"
NAME = "dataflow-0"


def prepare() -> None:
    """What the template does before it forks, beside importing this: compile the rules of manifests."""
    job()


class DataflowProcess:
    """Begins to run at once."""

    def __init__(self, simulation: Simulation, template: TemplateProcess, log: Path) -> None:
        file = simulation.folder / "job.json"
        file.write_text(json.dumps(simulation.job.model_dump(mode="json", by_alias=True, exclude_none=True)))
        settings = JobPodSettings(
            pod=PodSettings(namespace="default", job=simulation.job.metadata.name, role="dataflow", name=NAME),
            nats=simulation.settings,
            object_store=ObjectStoreSettings(bucket="unused"),
            ledger=LedgerSettings(key=SecretStr(KEY)),
            weights=WeightSettings(public_keys=(SIGNER.public_text,)),
            probes=ProbeSettings(host="127.0.0.1", port=0),
            job_file=file,
        )
        self._log = log
        self._template = template
        self._end: int | None = None
        self.pid = template.start(_serve, environment_for(settings), log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def ended(self) -> int | None:
        """What waitpid says of its end; None while it is there."""
        if self._end is None:
            self._end = self._template.ended(self.pid)
        return self._end

    def kill(self) -> None:
        if self.ended() is None:
            self._end = self._template.end(self.pid)


def _serve(environment: dict[str, str], log: Path) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    os.environ.update(environment)
    run_pod(main(pod_settings(DataflowPodSettings)))
