"""What each role of a job may do to objects, as a policy of S3 that its credentials are made with.

Everything of a job lies below one prefix, weights, checkpoints, claimed rows and archived samples apart. A rollout pod
reads weights, writes leases on them, and writes rows that are too large for a message; the trainer has all that is the
job's; the dataflow reads; what writes to trackers keeps how far it has come. Nothing names a bucket's own settings, so
none of them can change who may do what.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.api.source_uri import ObjectSource, source_of

MAX_POLICY_CHARACTERS = 2048
"""What AWS takes with a session."""
_READ = ("s3:GetObject",)
_LEASE = ("s3:PutObject", "s3:DeleteObject")
_DEPOSIT = ("s3:PutObject",)
_NOTEBOOK = ("s3:GetObject", "s3:PutObject")
_ALL = (
    "s3:GetObject",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
)


class PolicyTooLong(ValueError):
    """More than a store takes; the message names what to shorten."""


@dataclass(frozen=True, kw_only=True)
class JobPlace:
    """Where a job's objects are: `prefix` is its own, without a slash at its end."""

    bucket: str
    prefix: str
    policies: tuple[str, ...]
    datasets: tuple[str, ...] = ()
    """What every job's dataflow may read besides: a bucket, or a bucket and a prefix, as in `data/prompts`."""
    models: tuple[str, ...] = ()
    """What all of its pods may: the models that the manifest names, where all jobs may take models from."""
    origin: str | None = None
    """Of another job's checkpoints that its trainers begin at, the prefix without a slash at its end."""


def named_models(job: Mapping[str, Any], allowed: Sequence[str]) -> tuple[str, ...]:
    """Of the models in object storage that a job names, as bucket/prefix, those that it may have."""
    models = [policy.get("model") or {} for policy in job["spec"]["policies"]]
    sources = [source_of(str(model.get(name) or "")) for model in models for name in ("uri", "tokenizer")]
    named = {f"{one.bucket}/{one.prefix.strip('/')}" for one in sources if isinstance(one, ObjectSource)}
    return tuple(sorted(name for name in named if any(f"{name}/".startswith(f"{one.strip('/')}/") for one in allowed)))


def session_policy(role: str, place: JobPlace) -> str:
    """As JSON. Raises PolicyTooLong."""
    statements = {"rollout": _rollout, "trainer": _trainer, "dataflow": _dataflow, "tracking": _tracking}[role](place)
    if role != "tracking":
        statements += [statement for model in place.models for statement in _readable(*_split(model))]
    text = json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))
    if len(text) > MAX_POLICY_CHARACTERS:
        raise PolicyTooLong(
            f"what {role} pods may do to objects takes {len(text)} characters, stores take {MAX_POLICY_CHARACTERS}:"
            " shorten the names of namespace, job and policies, or the lists of datasets and models"
        )
    return text


def _rollout(place: JobPlace) -> list[object]:
    leases = [f"weights/{policy}/lease/*" for policy in place.policies]
    return [
        _allowed(_READ, place.bucket, [f"{place.prefix}/weights/*"]),
        _allowed(_LEASE, place.bucket, [f"{place.prefix}/{lease}" for lease in leases]),
        _allowed(_DEPOSIT, place.bucket, [f"{place.prefix}/claims/*"]),
    ]


def _trainer(place: JobPlace) -> list[object]:
    return [
        _allowed(_ALL, place.bucket, [f"{place.prefix}/*"]),
        _listing(("s3:ListBucket", "s3:ListBucketMultipartUploads"), place.bucket, f"{place.prefix}/*"),
        *([] if place.origin is None else [_allowed(_READ, place.bucket, [f"{place.origin}/*"])]),
    ]


def _dataflow(place: JobPlace) -> list[object]:
    statements: list[object] = []
    for bucket, prefix in ((place.bucket, place.prefix), *map(_split, place.datasets)):
        statements += _readable(bucket, prefix)
    return statements


def _tracking(place: JobPlace) -> list[object]:
    return [_allowed(_NOTEBOOK, place.bucket, [f"{place.prefix}/tracking/*"])]


def _readable(bucket: str, prefix: str) -> list[object]:
    below = f"{prefix}/*" if prefix else "*"
    return [_allowed(_READ, bucket, [below]), _listing(("s3:ListBucket",), bucket, below)]


def _allowed(actions: Sequence[str], bucket: str, keys: Sequence[str]) -> object:
    return {"Effect": "Allow", "Action": list(actions), "Resource": [f"arn:aws:s3:::{bucket}/{key}" for key in keys]}


def _listing(actions: Sequence[str], bucket: str, below: str) -> object:
    return {
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": [f"arn:aws:s3:::{bucket}"],
        "Condition": {"StringLike": {"s3:prefix": [below]}},
    }


def _split(dataset: str) -> tuple[str, str]:
    bucket, _, prefix = dataset.partition("/")
    return bucket, prefix.strip("/")
