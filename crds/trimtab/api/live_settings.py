"""What of a running job may be changed and is told when it is: how fast its policies learn, from how much, and from how
old.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import ListMap
from trimtab.api.scalars import Count, MemberName, PositiveCount


class PolicySettings(ApiModel):
    """Of one policy."""

    name: MemberName
    """Name of the policy."""
    learning_rate: float
    """`algorithm.optimizer.learningRate`."""
    batch_size: PositiveCount
    """Episodes in a step."""


class LiveSettings(ApiModel):
    """Settings of learning, as they were last taken from the spec."""

    max_staleness: Count
    """`data.maxStaleness`."""
    policies: Annotated[tuple[PolicySettings, ...], ListMap(), Field(max_length=256)] = ()
    """Policy by policy."""


def changes(before: LiveSettings, after: LiveSettings) -> tuple[str, ...]:
    """Each by the name of its field, with what it was and is."""
    found = []
    if before.max_staleness != after.max_staleness:
        found.append(f"data.maxStaleness {before.max_staleness} → {after.max_staleness}")
    known = {policy.name: policy for policy in before.policies}
    for policy in after.policies:
        was = known.get(policy.name)
        if was is None:
            continue
        if was.learning_rate != policy.learning_rate:
            field = f"policies[{policy.name}].algorithm.optimizer.learningRate"
            found.append(f"{field} {was.learning_rate:g} → {policy.learning_rate:g}")
        if was.batch_size != policy.batch_size:
            found.append(f"batchSize of policies[{policy.name}] {was.batch_size} → {policy.batch_size}")
    return tuple(found)
