"""What a pod's init container runs: fetch the sources of this pod, and end."""

from __future__ import annotations

import sys
from pathlib import Path

import structlog

from trimtab.api.job import RLJob
from trimtab.api.placement import policies_of
from trimtab.fabric.pod import JobMisconfigured, JobPodSettings, pod_settings, read_job, run_pod
from trimtab.fabric.sources.errors import SourceAway
from trimtab.fabric.sources.fetching import Fetcher
from trimtab.fabric.sources.hub import HubAccess
from trimtab.fabric.sources.wants import Want, dataflow_wants, rollout_wants, trainer_wants

_log = structlog.get_logger(__name__)


class FetchSettings(JobPodSettings):
    """Where places are made; the cache is beside them."""

    fetched: Path


def main() -> None:
    settings = pod_settings(FetchSettings)
    try:
        run_pod(_fetch(settings))
    except SourceAway as away:
        _log.error("source_away", reason=str(away))
        sys.exit(1)


async def _fetch(settings: FetchSettings) -> None:
    job = read_job(settings.job_file)
    access = HubAccess(endpoint=job.spec.hub.endpoint)
    fetcher = Fetcher(cache=settings.fetched.parent, hub=access, object_store=settings.object_store)
    await fetcher.fetch_all(_wants(job, settings), settings.fetched)


def _wants(job: RLJob, settings: FetchSettings) -> list[Want]:
    pod = settings.pod
    if pod.role == "dataflow":
        return dataflow_wants(job.spec)
    if pod.role == "trainer":
        return trainer_wants(next(policy for policy in job.spec.policies if policy.name == pod.policy))
    pool = next((pool for pool in job.spec.pools if pool.name == pod.pool), None)
    if pool is None:
        raise JobMisconfigured(f"pools: the manifest has none of the name {pod.pool}")
    return rollout_wants(policies_of(job.spec, pool, name=pool.name))


if __name__ == "__main__":
    main()
