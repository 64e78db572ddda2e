"""What commands on weights begin with: settings, the store with its clock, one policy in it, room on disk for chunks;
and errors in plain words.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import BaseModel
from rich.filesize import decimal

from trimtab.cli.weights.local_store import found_in
from trimtab.fabric.logs import configure_logs
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectStoreError, StoreUnauthorized, StoreUnavailable, StoreUnfit
from trimtab.fabric.settings import (
    LogSettings,
    ObjectStoreSettings,
    SettingsError,
    WeightSettings,
    load_settings,
    secret_values,
)
from trimtab.fabric.signing import InvalidSigningKey, Signer, Verifier
from trimtab.weights.store.chunk_fetch import DamagedChunk, MissingChunk
from trimtab.weights.store.kept import InvalidKept
from trimtab.weights.store.latest import (
    CatalogueTooLarge,
    InvalidPointer,
    Latest,
    LatestPointer,
    PointerRolledBack,
    SupersededTrainer,
)
from trimtab.weights.store.leases import InvalidLease
from trimtab.weights.store.manifest import InvalidManifest
from trimtab.weights.store.route import NoRoute

REQUEST_DEADLINE_S = 60.0
LEASE_TTL_S = 900.0
_SEED = "TRIMTAB_WEIGHTS__SIGNING_SEED"
_KEYS = "TRIMTAB_WEIGHTS__PUBLIC_KEYS"
_FAILURES = (
    SettingsError,
    InvalidSigningKey,
    ObjectStoreError,
    InvalidPointer,
    PointerRolledBack,
    SupersededTrainer,
    CatalogueTooLarge,
    InvalidLease,
    InvalidManifest,
    InvalidKept,
    NoRoute,
    DamagedChunk,
    MissingChunk,
    OSError,
)

Result = TypeVar("Result")

policy_option = click.option(
    "--policy", metavar="NAME", help="Whose weights; needed when the store has those of several policies."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


class StoreSettings(BaseModel):
    """Where a job's objects lie; whatever else a pod has been told is of no interest."""

    object_store: ObjectStoreSettings


class _Settings(StoreSettings):
    """The part of a pod's settings that weights need."""

    weights: WeightSettings = WeightSettings()


@dataclass(frozen=True)
class OpenWeights:
    """One policy's weights in the store, and the keys that we were given."""

    store: ObjectStore
    policy: str
    settings: WeightSettings

    async def latest(self) -> Latest:
        latest = await LatestPointer(self.store, self.policy).read(deadline_s=REQUEST_DEADLINE_S)
        if latest is None:
            others = ", ".join(await _policies(self.store)) or "none"
            raise click.ClickException(
                f"no trainer has published weights of {self.policy} to {_place(self.store)}; there are those of "
                f"{others}"
            )
        return latest

    def verifier(self) -> Verifier | None:
        """For the keys that pools trust. A trainer's settings have only the seed, which implies its public key."""
        keys = self.settings.public_keys
        if not keys and self.settings.signing_seed is not None:
            keys = (self._signer(self.settings.signing_seed.get_secret_value()).public_text,)
        try:
            return Verifier(keys) if keys else None
        except InvalidSigningKey as error:
            raise click.ClickException(f"{_KEYS}: {error}; `trimtab weights keygen` prints a valid pair") from None

    def needed_verifier(self) -> Verifier:
        verifier = self.verifier()
        if verifier is None:
            raise click.ClickException(
                f"{_KEYS} is missing: without the trainer's public key no signature can be checked; set it to what "
                "pools have, several separated by commas"
            )
        return verifier

    def needed_signer(self) -> Signer:
        """Refuses a key that pools do not trust: what it signs would stop them."""
        seed = self.settings.signing_seed
        if seed is None:
            raise click.ClickException(
                f"{_SEED} is missing: new manifests must be signed with the trainer's key; set it"
            )
        signer = self._signer(seed.get_secret_value())
        if self.settings.public_keys and signer.public_text not in self.settings.public_keys:
            raise click.ClickException(
                f"{_SEED} is not the seed of any key in {_KEYS}: pools would refuse what it signs; correct one of them"
            )
        return signer

    @staticmethod
    def _signer(seed: str) -> Signer:
        try:
            return Signer(seed)
        except InvalidSigningKey as error:
            raise click.ClickException(f"{_SEED}: {error}; `trimtab weights keygen` prints a valid one") from None


def with_weights(
    work: Callable[[OpenWeights], Coroutine[Any, Any, Result]],
    *,
    policy: str | None,
    failures: tuple[type[Exception], ...] = (),
    environment: Mapping[str, str] = os.environ,
    state_folder: Path | None = None,
) -> Result:
    """Runs a command's work. Besides what stores and settings fail with, `failures` are told as they read.

    The store is the one that `environment` names, or that of the job of `trimtab run` in `state_folder`.
    """
    if state_folder is not None:
        with found_in(state_folder) as found:
            return with_weights(work, policy=policy, failures=failures, environment=found)
    expected: tuple[type[Exception], ...] = (*_FAILURES, *failures)
    try:
        settings = load_settings(environment, _Settings)
        configure_logs(
            LogSettings(level="warning", format="console"), stream=sys.stderr, secrets=secret_values(settings)
        )
        return asyncio.run(_opened(settings, policy, work))
    except StoreUnauthorized as error:
        raise click.ClickException(
            f"{error}\nset TRIMTAB_OBJECT_STORE__ACCESS_KEY_ID and TRIMTAB_OBJECT_STORE__SECRET_ACCESS_KEY"
        ) from error
    except StoreUnavailable as error:
        raise click.ClickException(
            f"{error}\nis TRIMTAB_OBJECT_STORE__ENDPOINT_URL right, and the store up?"
        ) from error
    except expected as error:
        raise click.ClickException(str(error)) from error


async def store_time(store: ObjectStore, *, deadline_s: float) -> float:
    """The store's clock as its answers tell it, in whole seconds. Nothing is written: commands that only show must work
    with the right to read alone."""
    answer = await store.call(
        lambda: store.s3.list_objects_v2(Bucket=store.bucket, Prefix=store.full_key("weights"), MaxKeys=1),
        doing=f"list {store.where('weights')}",
        deadline_s=deadline_s,
    )
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is None:
        raise StoreUnfit("the store's answers have no Date, so ages cannot be told", missing=["the Date header"])
    return parsedate_to_datetime(date).timestamp()


@contextmanager
def scratch_folder(needed: int) -> Iterator[Path]:
    """Gone afterwards. Refused at once when there is no room for what will be put there."""
    with tempfile.TemporaryDirectory(prefix="trimtab-weights-") as name:
        free = shutil.disk_usage(name).free
        if free < needed:
            raise click.ClickException(
                f"{name} has room for {decimal(free)}, and {decimal(needed)} are needed; set TMPDIR to a larger disk"
            )
        yield Path(name)


async def _opened(
    settings: _Settings, policy: str | None, work: Callable[[OpenWeights], Coroutine[Any, Any, Result]]
) -> Result:
    try:
        store = ObjectStore(settings.object_store)
    except ValueError as error:
        raise click.ClickException(f"TRIMTAB_OBJECT_STORE__ENDPOINT_URL: {error}") from None
    async with store:
        return await work(OpenWeights(store, policy or await _only_policy(store), settings.weights))


async def _only_policy(store: ObjectStore) -> str:
    policies = await _policies(store)
    if not policies:
        raise click.ClickException(
            f"there are no weights in {_place(store)}; check TRIMTAB_OBJECT_STORE__BUCKET and "
            "TRIMTAB_OBJECT_STORE__PREFIX"
        )
    if len(policies) > 1:
        raise click.ClickException(f"{_place(store)} has weights of {', '.join(policies)}; choose with --policy")
    return policies[0]


async def _policies(store: ObjectStore) -> list[str]:
    """Up to a thousand, which is more than a person can choose from."""
    prefix = f"{store.full_key('weights')}/"
    answer = await store.call(
        lambda: store.s3.list_objects_v2(Bucket=store.bucket, Prefix=prefix, Delimiter="/"),
        doing=f"list {_place(store)}",
        deadline_s=REQUEST_DEADLINE_S,
    )
    return [common["Prefix"].removeprefix(prefix).rstrip("/") for common in answer.get("CommonPrefixes", [])]


def _place(store: ObjectStore) -> str:
    return store.where("weights")
