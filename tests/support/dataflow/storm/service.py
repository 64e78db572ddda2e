"""The dataflow pod as a fork: `python -m trimtab.dataflow` without the second that its imports take, and with a journal
that is compacted often.
"""

from __future__ import annotations

import os
from functools import partial

from pydantic import SecretStr

from tests.support.dataflow.storm.leaving import hold_sigterm, release_sigterm
from tests.support.dataflow.storm.site import JOB, NAMESPACE, Site, manifest
from trimtab.api.validation import parse
from trimtab.dataflow.__main__ import DataflowPodSettings, main
from trimtab.dataflow.ledger.journal import Journal
from trimtab.fabric.pod import JobPodSettings, pod_settings, run_pod
from trimtab.fabric.settings import LedgerSettings, ObjectStoreSettings, PodSettings, ProbeSettings, environment_for

SERVICE = "dataflow"


def prepare() -> None:
    """What a template process does before it forks, beside importing this: compile the rules of manifests."""
    parse(manifest())
    hold_sigterm()


def serve(site: Site) -> None:
    release_sigterm()  # a pod ends by it at any moment
    site.write_output_to(SERVICE)
    settings = JobPodSettings(
        pod=PodSettings(namespace=NAMESPACE, job=JOB, role="dataflow", name="dataflow-0"),
        nats=site.nats,
        object_store=ObjectStoreSettings(bucket="unused"),
        ledger=LedgerSettings(key=SecretStr("k" * 32)),
        probes=ProbeSettings(host="127.0.0.1", port=0),
        job_file=site.job_file,
    )
    os.environ.update(environment_for(settings))
    journal = partial(Journal, compact_after_bytes=site.compact_after_bytes)
    run_pod(main(pod_settings(DataflowPodSettings), make_journal=journal))
