"""What commands on the objects of a job that does not run are told: the settings that its pods have had, but for where
its store is now. A state folder that was restored, and in which no pod has run yet, has them in its manifest and keys.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, SecretStr

from trimtab.cli.job_bucket import left_environment
from trimtab.fabric.pod import read_job
from trimtab.fabric.settings import ObjectStoreSettings, WeightSettings, environment_for
from trimtab.fabric.signing import Signer
from trimtab.operator.local.state_files import ENVIRONMENT_FILE, MANIFEST_FILE, SEED_FILE

_ENDPOINT = "TRIMTAB_OBJECT_STORE__ENDPOINT_URL"


class _Settings(BaseModel):
    object_store: ObjectStoreSettings
    weights: WeightSettings


def ended_environment(state_folder: Path, store: ObjectStoreSettings) -> dict[str, str]:
    """`store` is the server that was started for the command. Raises click.ClickException where no job has begun."""
    manifest, seed_file = state_folder / MANIFEST_FILE, state_folder / SEED_FILE
    if (state_folder / ENVIRONMENT_FILE).is_file() or not (manifest.is_file() and seed_file.is_file()):
        # The port of then may be another's now.
        return left_environment(state_folder) | {_ENDPOINT: str(store.endpoint_url)}
    metadata, seed = read_job(manifest).metadata, seed_file.read_text(encoding="utf-8").strip()
    prefix = f"{metadata.namespace or 'default'}/{metadata.name}"
    return environment_for(
        _Settings(
            object_store=store.model_copy(update={"prefix": prefix}),
            weights=WeightSettings(signing_seed=SecretStr(seed), public_keys=(Signer(seed).public_text,)),
        )
    )
