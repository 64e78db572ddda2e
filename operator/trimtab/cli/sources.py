"""What a manifest names by hf:// and s3://, fetched to where such things usually lie here before a job runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console

from trimtab.api.job import RLJob
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.sources.errors import SourceAway, SourceRefused
from trimtab.fabric.sources.fetching import Fetcher
from trimtab.fabric.sources.hub import HubAccess
from trimtab.fabric.sources.wants import Want, job_wants, located, rollout_wants
from trimtab.operator.local.executor import FETCHED, secret_variable


def with_fetched(job: RLJob, state_folder: Path, *, environment: Mapping[str, str], console: Console) -> RLJob:
    """The job with places in the stead of all its sources, which its pods find in the same folder."""
    return _fetched(job, job_wants(job.spec), state_folder, environment=environment, console=console)


def with_models(job: RLJob, folder: Path, *, environment: Mapping[str, str], console: Console) -> RLJob:
    """The same for its models alone."""
    return _fetched(job, rollout_wants(job.spec.policies), folder, environment=environment, console=console)


def _fetched(
    job: RLJob, wants: list[Want], state_folder: Path, *, environment: Mapping[str, str], console: Console
) -> RLJob:
    if not wants:
        return job
    places = state_folder / FETCHED
    for uri in dict.fromkeys(want.source.uri for want in wants):
        console.print(f"fetching {uri}, unless it is here already", soft_wrap=True, highlight=False)
    _fetch(job, wants, places, environment=environment)
    return located(job, str(places))


def _fetch(job: RLJob, wants: list[Want], places: Path, *, environment: Mapping[str, str]) -> None:
    """Raises ClickException with the field and the fix."""
    fetcher = Fetcher(
        cache=_cache(environment),
        hub=HubAccess(endpoint=job.spec.hub.endpoint, token=_token(job, environment)),
        object_store=environments_store(environment),
    )
    try:
        asyncio.run(fetcher.fetch_all(wants, places))
    except (SourceRefused, SourceAway) as error:
        raise click.ClickException(f"spec.{error}") from None


def _cache(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trimtab"


def _token(job: RLJob, environment: Mapping[str, str]) -> str | None:
    """None leaves it to what the hub's own library finds: HF_TOKEN, or what a login left."""
    secret = job.spec.hub.token_secret
    return None if secret is None else environment.get(secret_variable(secret))


def environments_store(environment: Mapping[str, str]) -> ObjectStoreSettings:
    """By the variables of the AWS tools, as boto3 itself finds keys."""
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    bundle = environment.get("AWS_CA_BUNDLE")
    return ObjectStoreSettings(
        bucket="any",
        endpoint_url=environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL"),
        ca_file=None if bundle is None else Path(bundle),
        **({} if region is None else {"region": region}),
    )
