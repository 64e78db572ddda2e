"""A way for people who have the operator's key into a job's account of NATS: which account that is follows from the
job's uid, which the API server knows.
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from trimtab.fabric.bus.credentials import MintedCredentials
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.keys import InvalidNkey
from trimtab.fabric.bus.users.mint import AccountMint
from trimtab.kube.access import AccessError, load_access
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError
from trimtab.kube.resources import RLJOBS

# What a person looks at takes seconds.
_WINDOW_S = 3600


class AccountsKey(BaseModel):
    """The part of the operator's settings that is needed here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed_file: Path


class JobUnknown(Exception):
    """The job's account cannot be found; the message says why."""


async def administrators_credentials(key: AccountsKey, topology: JobTopology) -> MintedCredentials:
    """Of a user that may do everything to the job's streams. Raises JobUnknown."""
    try:
        mint = AccountMint(key.seed_file.read_text(encoding="ascii"), window_s=_WINDOW_S, clock=time.time)
    except (OSError, ValueError) as error:
        reason = str(error) if isinstance(error, InvalidNkey) else type(error).__name__
        raise JobUnknown(f"TRIMTAB_NATS_ACCOUNTS__SEED_FILE: {key.seed_file}: {reason}") from None
    try:
        async with KubeClient(load_access(), user_agent="trimtab") as client:
            job = await client.get_or_none(RLJOBS, topology.job, namespace=topology.namespace)
    except (AccessError, KubeError) as error:
        raise JobUnknown(f"cannot ask the API server for the job's uid: {error}") from None
    if job is None:
        raise JobUnknown(f"there is no job {topology.job} in namespace {topology.namespace}")
    uid = job["metadata"]["uid"]
    return MintedCredentials(lambda: mint.administrator(job_uid=uid).credentials)
