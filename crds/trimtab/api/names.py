"""Names of everything a job creates. They are functions of the job's names alone, so that a restarted operator finds
its children again and never makes two of one; the length limits the API enforces follow from the longest of them.

Two jobs can still derive one name (`a` with `b-c`, `a-b` with `c`), and a person may have taken it by hand: the code
that creates a child checks first that what has its name is its own.
"""

from __future__ import annotations

MAX_LABEL = 63
ORDINAL_DIGITS = 5
ROLLOUT_INFIX = "-rollout-"
TRAINER_INFIX = "-trainer-"
DATAFLOW_SUFFIX = "-dataflow"
TRACKING_SUFFIX = "-tracking"

# Pods take their name as hostname and label value, both limited to 63 characters.
MAX_CHILD_NAME = MAX_LABEL - max(len(ROLLOUT_INFIX), len(TRAINER_INFIX)) - ORDINAL_DIGITS
# A child is called `<job>-<member>`.
MAX_JOB_AND_MEMBER = MAX_CHILD_NAME - 1

# `<job>-dataflow` is the dataflow's own name, so no policy or pool may be called that.
RESERVED_MEMBERS = ("dataflow",)


class NameTooLongError(ValueError):
    """A derived name would not fit a pod's hostname."""


def trainer_name(job: str, policy: str) -> str:
    """The Trainer of one policy."""
    return _fit(f"{job}-{policy}", limit=MAX_CHILD_NAME)


def pool_name(job: str, pool: str) -> str:
    """The RolloutPool of one pool."""
    return _fit(f"{job}-{pool}", limit=MAX_CHILD_NAME)


def dataflow_name(job: str) -> str:
    """What the dataflow's objects are called; its pods append their shard."""
    return _fit(f"{job}{DATAFLOW_SUFFIX}", limit=MAX_LABEL - 1 - ORDINAL_DIGITS)


def dataflow_pod_name(job: str, shard: int) -> str:
    """The pod of one dataflow shard."""
    return _ordinal(f"{dataflow_name(job)}-", shard)


def tracking_pod_name(job: str) -> str:
    """The pod that writes to the job's trackers."""
    return _fit(f"{job}{TRACKING_SUFFIX}", limit=MAX_LABEL)


def rollout_pod_name(pool: str, ordinal: int) -> str:
    """One pod of the RolloutPool named `pool`. The infix keeps a pool and a trainer of the same name apart."""
    return _ordinal(f"{pool}{ROLLOUT_INFIX}", ordinal)


def trainer_pod_name(trainer: str, rank: int) -> str:
    """One pod of the Trainer named `trainer`."""
    return _ordinal(f"{trainer}{TRAINER_INFIX}", rank)


def _ordinal(prefix: str, number: int) -> str:
    if not 0 <= number < 10**ORDINAL_DIGITS:
        raise NameTooLongError(f"ordinal {number} must be between 0 and {10**ORDINAL_DIGITS - 1}")
    return _fit(f"{prefix}{number}", limit=MAX_LABEL)


def _fit(name: str, *, limit: int) -> str:
    if len(name) > limit:
        raise NameTooLongError(
            f"{name!r} has {len(name)} characters, at most {limit} fit: shorten the job's or member's name"
        )
    return name
