"""Where a job begins that resumes another one of its namespace: looked up once, and kept in its own Secret. Whatever
becomes of the other job later, how its next versions do, or what is made under its name, changes nothing then.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection

from trimtab.api.job import RLJob
from trimtab.api.resume import BEST
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.settings import ObjectStoreSettings, ResumeSettings
from trimtab.fabric.signing import Signer
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import RLJOBS, SECRETS, Object
from trimtab.operator import event_reasons as reasons
from trimtab.operator.pods.credentials import job_prefix, kept_keys, kept_origin, secret_name
from trimtab.operator.pods.job_keys import KeyRoot
from trimtab.operator.reconcile.job_buses import JobIdentity
from trimtab.operator.reconcile.objections import Objection
from trimtab.operator.reconcile.ownership import Objected, controller_uid
from trimtab.operator.resume_source import NoBestStep, itself, ranked, unlike

_CHECKPOINTS = "checkpoints"
_FIELD = "spec.resumeFrom.job"
ReadResults = Callable[[JobIdentity, Collection[str]], Awaitable[list[EvaluationResult]]]
"""What evaluations have said of these policies of a job. Raises BusError."""


async def origin_of(
    client: KubeClient,
    job: Object,
    secret: Object | None,
    *,
    object_store: ObjectStoreSettings,
    key_root: KeyRoot | None,
    results: ReadResults,
) -> ResumeSettings | None:
    """None for a job that begins at its models, or at a place that its manifest names. `secret` is the job's own, as
    far as there is one. Raises Objected."""
    wanted = job["spec"].get("resumeFrom") or {}
    name, best = wanted.get("job"), wanted.get("step") == BEST
    if name is None:
        return None
    metadata = job["metadata"]
    namespace = metadata["namespace"]
    kept = kept_origin(secret)
    # Who may write Secrets there must not get what other namespaces have stored by it.
    policies = [policy["name"] for policy in job["spec"]["policies"] if not policy.get("frozen")]
    complete = kept is not None and (not best or all(kept.steps_of(policy) for policy in policies))
    if kept is not None and complete and _own_places(namespace, object_store).fullmatch(kept.place):
        return kept
    if not is_needed(job):
        return None
    if name == metadata["name"]:
        raise _objected(itself(name))
    source = await client.get_or_none(RLJOBS, name, namespace=namespace)
    if source is None:
        raise _objected(
            f"{_FIELD}: there is no job {name} in namespace {namespace}; of one that was deleted, name the place in"
            " resumeFrom.checkpoint"
        )
    try:
        public_key = Signer(await _seed(client, source, key_root=key_root)).public_text
        spec = RLJob.model_validate(source).spec
    except ValueError as error:  # its Secret and its spec are what people of the namespace have written
        raise _objected(f"{_FIELD}: {name} cannot be read: {type(error).__name__}; name another job") from None
    if (why := unlike(spec, policies, name=name, namespace=namespace, public_key=public_key)) is not None:
        raise _objected(why)
    return ResumeSettings(
        place=f"s3://{object_store.bucket}/{job_prefix(source, object_store)}/{_CHECKPOINTS}",
        job=f"{namespace}/{name}",
        public_key=public_key,
        steps=await _ranked(source, policies, results) if best else (),
    )


async def _ranked(source: Object, policies: Collection[str], results: ReadResults) -> tuple[str, ...]:
    """What did best first: which of them are kept is known where checkpoints are read."""
    try:
        found = await results(JobIdentity.of(source), policies)
        return tuple(f"{policy}={'/'.join(map(str, ranked(found, policy=policy)))}" for policy in policies)
    except NoBestStep as error:
        raise _objected(str(error)) from None
    except BusError as error:
        raise _objected(
            f"spec.resumeFrom.step: the scores of {source['metadata']['name']} cannot be read now: {error}; give the"
            " number of a step in place of Best, or wait: it is tried again"
        ) from None


def _own_places(namespace: str, object_store: ObjectStoreSettings) -> re.Pattern[str]:
    base = "/".join(part for part in (object_store.bucket, object_store.prefix.strip("/"), namespace) if part)
    return re.compile(rf"s3://{re.escape(base)}/[a-z0-9][a-z0-9-]*/{_CHECKPOINTS}", re.ASCII)


def is_needed(job: Object) -> bool:
    """Whether its trainers may read the other job's checkpoints still. Each makes one of its own before its first step,
    and goes on from that one after a restart; the job's step is that of the policy which is furthest behind."""
    return not (job.get("status") or {}).get("step")


def origin_prefix(origin: ResumeSettings | None, object_store: ObjectStoreSettings) -> str | None:
    """Below which its checkpoints are in the jobs' bucket."""
    return None if origin is None else origin.place.removeprefix(f"s3://{object_store.bucket}/")


async def _seed(client: KubeClient, source: Object, *, key_root: KeyRoot | None) -> str:
    metadata = source["metadata"]
    name, namespace, uid = metadata["name"], metadata["namespace"], metadata["uid"]
    secret = await client.get_or_none(SECRETS, secret_name(name), namespace=namespace)
    seed, _ = kept_keys(secret if secret is not None and controller_uid(secret) == uid else None)
    if seed is None and key_root is not None:
        seed = key_root.keys(uid).signing_seed
    if seed is None:
        raise _objected(
            f"{_FIELD}: {name} has no Secret {secret_name(name)} with the key that it signs checkpoints with: it has"
            " not begun yet; wait until it has a checkpoint"
        )
    return seed


def _objected(message: str) -> Objected:
    return Objected(Objection(reason=reasons.SOURCE_REFUSED, message=message))
