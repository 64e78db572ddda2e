"""From `trainer.checkpoint.uri` of the manifest to the storage: the job's object store, another bucket, or a folder.
From the pod's settings to the key that checkpoints are signed with.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

from trimtab.api.policy import Policy
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import (
    ObjectNotFound,
    StoreRefused,
    StoreUnauthorized,
    StoreUnfit,
)
from trimtab.fabric.objects.selftest import prove_store
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.settings import Settings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.trainer.checkpoints.folder_storage import FolderStorage
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.seal import CheckpointSeal
from trimtab.trainer.checkpoints.storage import CheckpointStorage

_BUCKET = re.compile(r"^s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[^?#]*))?$")
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:")


async def open_storage(
    policy: Policy, settings: Settings, *, store: ObjectStore, job_folder: Path, stack: AsyncExitStack
) -> CheckpointStorage:
    """`store` is the job's own. A storage that the manifest names may be shared, so the job's name is in its paths."""
    uri = policy.trainer.checkpoint.uri
    if uri is None:
        return ObjectStorage(store, f"checkpoints/{policy.name}")
    field = f"policies[{policy.name}].trainer.checkpoint.uri: {uri}"
    below = f"{settings.pod.namespace}/{settings.pod.job}/{policy.name}"
    if not _SCHEME.match(uri):
        return await _folder(job_folder / uri / below, field=field)
    found = bucket_of(uri)
    if found is None:
        raise JobMisconfigured(f"{field}: is neither s3://bucket/prefix nor a folder; write one of them")
    bucket, prefix = found
    other = settings.object_store.model_copy(update={"bucket": bucket, "prefix": prefix})
    opened = await stack.enter_async_context(ObjectStore(other))
    try:
        await prove_store(opened)
    except (ObjectNotFound, StoreRefused, StoreUnauthorized, StoreUnfit) as error:
        raise JobMisconfigured(
            f"{field}: {error}; make the bucket, or let the job's credentials (TRIMTAB_OBJECT_STORE__…) write to it"
        ) from None
    return ObjectStorage(opened, below)


def bucket_of(uri: str) -> tuple[str, str] | None:
    """Of s3://bucket/prefix both, without slashes around them."""
    found = _BUCKET.match(uri)
    return None if found is None else (found["bucket"], (found["prefix"] or "").strip("/"))


def open_seal(policy: Policy, settings: Settings) -> CheckpointSeal:
    """With the key that signs the job's weights; public keys that are trusted during a rotation are so here too."""
    if settings.weights.signing_seed is None:
        raise JobMisconfigured("TRIMTAB_WEIGHTS__SIGNING_SEED: missing; trainers resume signed checkpoints only")
    signer = Signer(settings.weights.signing_seed.get_secret_value())
    return CheckpointSeal(
        job=f"{settings.pod.namespace}/{settings.pod.job}",
        policy=policy.name,
        signer=signer,
        verifier=Verifier({signer.public_text, *settings.weights.public_keys}),
    )


async def _folder(root: Path, *, field: str) -> FolderStorage:
    storage = FolderStorage(root)
    try:
        await asyncio.to_thread(storage.lay_out)
    except OSError as error:
        raise JobMisconfigured(
            f"{field}: checkpoints cannot be written there ({error.strerror}: {error.filename}); name a folder that"
            " every rank can write to, on a volume with hard links, or s3://bucket/prefix"
        ) from None
    return storage
