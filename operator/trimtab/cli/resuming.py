"""Where a job of `trimtab run` begins that resumes another one: the checkpoint is copied beside it before anything of
it runs, so that nothing that happens to the other job later changes this one.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from trimtab.api.job import RLJob
from trimtab.api.manifest import UnreadableManifestError
from trimtab.api.resume import BEST, ResumeFrom
from trimtab.api.validation import InvalidManifestError
from trimtab.cli.backups.place import JobPlace, place_of
from trimtab.cli.checkpoint_copy import ReplacedTooFast, copy_checkpoint
from trimtab.cli.job_bucket import readable_errors
from trimtab.cli.sources import environments_store
from trimtab.cli.weights.wanted_version import results_of
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.fabric.pod import read_job
from trimtab.fabric.settings import ObjectStoreSettings, ResumeSettings
from trimtab.fabric.signing import InvalidSigningKey, Signer, Verifier
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.operator.local.state_files import MANIFEST_FILE, RESUME_FILE, RESUME_FOLDER
from trimtab.operator.resume_source import NoBestStep, itself, ranked, refusal, unlike
from trimtab.trainer.checkpoints.folder_storage import FolderStorage
from trimtab.trainer.checkpoints.index import CheckpointDamaged, IndexReference
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.origin import NoSuchCheckpoint, chosen, first_kept
from trimtab.trainer.checkpoints.registry import bucket_of
from trimtab.trainer.checkpoints.seal import SealReader


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Whose checkpoints are copied, of each policy from a folder of this name below `prefix`."""

    object_store: ObjectStoreSettings
    prefix: str
    job: str | None
    """namespace/name; None for whichever job has the key."""
    public_key: str
    step: Callable[[str, tuple[IndexReference, ...]], IndexReference]


def find_beginning(job: RLJob, folder: Path, *, environment: Mapping[str, str], console: Console) -> None:
    """Of the first run in this state folder, which the caller holds. Raises ClickException with the field."""
    wanted = job.spec.resume_from
    begun = folder / MANIFEST_FILE
    if begun.is_file():
        _check_unchanged(begun, wanted)
        return
    if wanted is None:
        return
    if (why := refusal(job.spec)) is not None:
        raise click.ClickException(why)
    try:
        with readable_errors():
            settings = _found(job, wanted, folder, environment=environment, console=console)
    except (NoSuchCheckpoint, CheckpointDamaged, ReplacedTooFast, ObjectStoreError, InvalidSigningKey) as error:
        raise click.ClickException(f"spec.resumeFrom: {error}") from None
    except NoBestStep as error:
        raise click.ClickException(str(error)) from None
    if settings is not None:
        partial = folder / f"{RESUME_FILE}.partial"
        partial.write_text(settings.model_dump_json(), encoding="utf-8")
        partial.replace(folder / RESUME_FILE)


def _check_unchanged(manifest: Path, wanted: ResumeFrom | None) -> None:
    try:
        before = read_job(manifest).spec.resume_from
    except (InvalidManifestError, UnreadableManifestError, ValueError):
        return  # of another version, which had no such field or has said what is wrong
    if before != wanted:
        raise click.ClickException(
            "spec.resumeFrom: is not what this job has begun with, and its versions continue from that; put it back, or"
            " begin anew with --fresh"
        )


def _found(
    job: RLJob, wanted: ResumeFrom, folder: Path, *, environment: Mapping[str, str], console: Console
) -> ResumeSettings | None:
    policies = [policy.name for policy in job.spec.learning]
    if wanted.job is not None:
        return _of_job(job, wanted, wanted.job, folder, policies, console)
    assert wanted.checkpoint is not None, "the manifest's rules ask for one of them"
    assert wanted.public_key is not None, "the manifest's rules ask for it"
    bucket = bucket_of(wanted.checkpoint)
    if bucket is None:
        return None  # the trainer reads it where it is
    name, prefix = bucket
    source = _Source(
        object_store=environments_store(environment).model_copy(update={"bucket": name}),
        prefix=prefix,
        job=None,
        public_key=wanted.public_key,
        step=lambda _, committed: chosen(committed, _number(wanted)),
    )
    console.print(f"copying checkpoints from {wanted.checkpoint}", soft_wrap=True, highlight=False)
    return asyncio.run(_copied(source, policies, folder))


def _of_job(
    job: RLJob, wanted: ResumeFrom, name: str, folder: Path, policies: Sequence[str], console: Console
) -> ResumeSettings:
    state, namespace = folder.parent / name, job.metadata.namespace or "default"
    if state == folder:
        raise click.ClickException(itself(name))
    if not (state / MANIFEST_FILE).is_file():
        raise click.ClickException(
            f"spec.resumeFrom.job: {state} is no state folder of a job {name}; run that one first, or give this one a"
            " --state-folder beside it"
        )
    results: list[EvaluationResult] = []
    if wanted.step == BEST:
        results = results_of(JobTopology(namespace, name), state_folder=state)
    with place_of(name, namespace=namespace, state_folder=state) as place:
        source = _source_of(place, wanted, results, policies)
        console.print(f"copying checkpoints of {name}", soft_wrap=True, highlight=False)
        return asyncio.run(_copied(source, policies, folder))


def _source_of(
    place: JobPlace, wanted: ResumeFrom, results: Sequence[EvaluationResult], policies: Sequence[str]
) -> _Source:
    name, namespace = place.job.metadata.name, place.job.metadata.namespace or "default"
    public_key = Signer(place.keys.signing_seed).public_text
    objection = unlike(place.job.spec, policies, name=name, namespace=namespace, public_key=public_key)
    if objection is not None:
        raise click.ClickException(objection)
    best = {policy: ranked(results, policy=policy) for policy in policies} if wanted.step == BEST else {}

    def step(policy: str, committed: tuple[IndexReference, ...]) -> IndexReference:
        if policy in best:
            return first_kept(committed, best[policy])
        return chosen(committed, _number(wanted))

    return _Source(
        object_store=place.object_store,
        prefix="checkpoints",
        job=f"{namespace}/{name}",
        public_key=public_key,
        step=step,
    )


def _number(wanted: ResumeFrom) -> int | None:
    return wanted.step if isinstance(wanted.step, int) else None


async def _copied(source: _Source, policies: Sequence[str], folder: Path) -> ResumeSettings:
    target, partial = folder / RESUME_FOLDER, folder / f"{RESUME_FOLDER}.partial"
    for leftover in (target, partial):
        await asyncio.to_thread(shutil.rmtree, leftover, ignore_errors=True)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(ObjectStore(source.object_store))
        steps = [f"{name}={await _copied_policy(source, store, name, partial / name)}" for name in policies]
    partial.replace(target)
    return ResumeSettings(place=str(target.resolve()), job=source.job, public_key=source.public_key, steps=tuple(steps))


async def _copied_policy(source: _Source, store: ObjectStore, policy: str, target: Path) -> int:
    """The step that was taken."""
    storage = FolderStorage(target)
    storage.lay_out()
    seal = SealReader(job=source.job, policy=policy, verifier=Verifier([source.public_key]))

    def place(name: str) -> Path:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    copied = await copy_checkpoint(
        ObjectStorage(store, f"{source.prefix}/{policy}".lstrip("/")),
        seal,
        place,
        choose=lambda committed: source.step(policy, committed),
    )
    if copied is None:
        raise NoSuchCheckpoint(f"there is no checkpoint of policy {policy} yet; let that job train until it has one")
    step, pointer = copied
    await storage.swap_pointer(pointer, seen=None)
    return step
