"""Where a new job begins when it is at a checkpoint of another one: the place, whose checkpoints are believed there,
and which of them it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from trimtab.api.policy import Policy
from trimtab.api.resume import BEST, ResumeFrom
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectNotFound, StoreRefused, StoreUnauthorized
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.settings import Settings
from trimtab.fabric.signing import InvalidSigningKey, Verifier
from trimtab.trainer.checkpoints.folder_storage import FolderStorage
from trimtab.trainer.checkpoints.index import CheckpointDamaged, IndexReference
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.reader import CheckpointReader
from trimtab.trainer.checkpoints.registry import bucket_of
from trimtab.trainer.checkpoints.seal import SealReader
from trimtab.trainer.checkpoints.storage import CheckpointStorage, FileMissing

_FIELD = "spec.resumeFrom"


class NoSuchCheckpoint(ValueError):
    """The message says which there are."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Of one policy."""

    reader: CheckpointReader
    where: str
    policy: str
    step: int | None
    """None is the newest."""
    ranked: tuple[int, ...] = ()
    """In place of it, where whoever runs the job has looked them up: of these the first that is kept."""
    optimizer: bool

    async def sealed(self) -> bytes:
        """The index of the checkpoint as it was signed. Raises JobMisconfigured."""
        try:
            committed = await self.reader.committed()
            return await self.reader.sealed(self._chosen(committed))
        except FileMissing:
            raise JobMisconfigured(f"{_FIELD}: {self.where}: {_none_of(self.policy)}") from None
        except NoSuchCheckpoint as error:
            raise JobMisconfigured(f"{_FIELD}: {self.where}: {self.policy}: {error}") from None
        except CheckpointDamaged as error:
            raise misfit(error, policy=self.policy) from None
        except (ObjectNotFound, StoreRefused, StoreUnauthorized) as error:
            raise JobMisconfigured(
                f"{_FIELD}: {error}; name a place that this job's credentials (TRIMTAB_OBJECT_STORE__…) may read"
            ) from None

    def _chosen(self, committed: tuple[IndexReference, ...]) -> IndexReference:
        return first_kept(committed, self.ranked) if self.ranked else chosen(committed, self.step)


def chosen(committed: tuple[IndexReference, ...], step: int | None) -> IndexReference:
    """Of equal steps the newest. Raises NoSuchCheckpoint."""
    if not committed:
        raise NoSuchCheckpoint("there is no checkpoint yet; let that job train until it has one")
    found = next((one for one in committed if step in (None, one.step)), None)
    if found is None:
        kept = ", ".join(str(one.step) for one in committed)
        raise NoSuchCheckpoint(
            f"there is no checkpoint of step {step}; there are those of {kept}. trainer.checkpoint.keep of that job"
            " says how many are kept"
        )
    return found


def first_kept(committed: tuple[IndexReference, ...], ranked: Sequence[int]) -> IndexReference:
    """Of the steps that were evaluated, the best first, the first that has a checkpoint. Raises NoSuchCheckpoint."""
    chosen(committed, None)
    # Of equal steps the newest, as always.
    kept = {one.step: one for one in reversed(committed)}
    found = next((kept[step] for step in ranked if step in kept), None)
    if found is None:
        steps = ", ".join(str(one.step) for one in committed)
        raise NoSuchCheckpoint(
            f"none of the checkpoints that are kept, of steps {steps}, was evaluated; give the number of one of them in"
            " place of Best. There are such when evaluation.everySteps is a multiple of trainer.checkpoint.everySteps"
        )
    return found


def misfit(error: CheckpointDamaged, *, policy: str) -> JobMisconfigured:
    """It cannot be begun with, as it is or for the model that the manifest names. How its own job could go on is not
    the question here."""
    what, _, _ = str(error).partition("; ")
    return JobMisconfigured(
        f"{_FIELD}: {what}; name another checkpoint, or in policies[{policy}] the model and lora of the job that wrote"
        " this one"
    )


async def open_origin(
    policy: Policy, wanted: ResumeFrom, settings: Settings, *, job_folder: Path, stack: AsyncExitStack
) -> Origin:
    """As who runs the job has found it, or as the manifest says it."""
    found, step = settings.resume, wanted.step
    ranked = () if found is None else found.steps_of(policy.name)
    if found is not None:
        place, job, key = found.place, found.job, found.public_key
    elif wanted.checkpoint is not None and wanted.public_key is not None:
        place, job, key = wanted.checkpoint, None, wanted.public_key
    else:
        raise JobMisconfigured(f"{_FIELD}: TRIMTAB_RESUME__…: missing; whoever runs the job must say where that is")
    if step == BEST and not ranked:
        raise JobMisconfigured(f"{_FIELD}.step: {step} is not known here; give the number of a step")
    try:
        seal = SealReader(job=job, policy=policy.name, verifier=Verifier([key]))
    except InvalidSigningKey as error:
        raise JobMisconfigured(f"{_FIELD}.publicKey: {error}") from None
    storage = await _storage(place, policy, settings, job_folder=job_folder, stack=stack)
    return Origin(
        reader=CheckpointReader(storage, seal),
        where=place,
        policy=policy.name,
        step=step if isinstance(step, int) else None,
        ranked=ranked,
        optimizer=wanted.optimizer,
    )


async def _storage(
    place: str, policy: Policy, settings: Settings, *, job_folder: Path, stack: AsyncExitStack
) -> CheckpointStorage:
    """Only to be read from: nothing is proved or laid out."""
    bucket = bucket_of(place)
    if bucket is None and "://" in place:
        raise JobMisconfigured(f"{_FIELD}.checkpoint: {place} is neither s3://bucket/prefix nor a folder")
    if bucket is None:
        return FolderStorage(job_folder / place / policy.name)
    name, prefix = bucket
    other = settings.object_store.model_copy(update={"bucket": name, "prefix": prefix})
    return ObjectStorage(await stack.enter_async_context(ObjectStore(other)), policy.name)


def _none_of(policy: str) -> str:
    return f"there are no checkpoints of a policy {policy}; policies of both jobs must have the same names"
