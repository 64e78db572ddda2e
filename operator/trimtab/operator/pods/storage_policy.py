"""What each role of a job may do to objects, as a policy of S3 that its credentials are made with.

Everything of a job lies below one prefix, weights, checkpoints and claimed rows apart. A rollout pod reads weights,
writes leases on them, and writes rows that are too large for a message; the trainer has all that is the job's; the
dataflow reads. Nothing names a bucket's own settings, so none of them can change who may do what.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

MAX_POLICY_CHARACTERS = 2048
"""What AWS takes with a session."""
_READ = ("s3:GetObject",)
_LEASE = ("s3:PutObject", "s3:DeleteObject")
_DEPOSIT = ("s3:PutObject",)
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


def session_policy(role: str, place: JobPlace) -> str:
    """As JSON. Raises PolicyTooLong."""
    statements = {"rollout": _rollout, "trainer": _trainer, "dataflow": _dataflow}[role](place)
    text = json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))
    if len(text) > MAX_POLICY_CHARACTERS:
        raise PolicyTooLong(
            f"what {role} pods may do to objects takes {len(text)} characters, stores take {MAX_POLICY_CHARACTERS}:"
            " shorten the names of namespace, job and policies, or the list of datasets"
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
    ]


def _dataflow(place: JobPlace) -> list[object]:
    statements: list[object] = []
    for bucket, prefix in ((place.bucket, place.prefix), *map(_split, place.datasets)):
        below = f"{prefix}/*" if prefix else "*"
        statements += [_allowed(_READ, bucket, [below]), _listing(("s3:ListBucket",), bucket, below)]
    return statements


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
