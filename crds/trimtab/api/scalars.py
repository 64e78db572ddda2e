"""The small types the API is built from: names, bounded numbers, durations, quantities, references and whole pod
templates. Every string and list has an upper bound, because the API server prices CEL rules by them.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from trimtab.api.model import ApiModel

MAX_REPLICAS = 10_000

LABEL_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
ENTRYPOINT_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
QUANTITY_PATTERN = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
COUNT_OR_PERCENT_PATTERN = r"^([0-9]|[1-9][0-9]|100)%$"

MemberName = Annotated[str, Field(min_length=1, max_length=40, pattern=LABEL_PATTERN)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
ColumnName = Annotated[str, Field(min_length=1, max_length=128)]
Entrypoint = Annotated[str, Field(min_length=3, max_length=256, pattern=ENTRYPOINT_PATTERN)]
Location = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\s]+$")]
Url = Annotated[str, Field(max_length=1024, pattern=r"^https?://[^\s/]+[^\s]*$")]

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
PositiveCount = Annotated[int, Field(ge=1, le=2**31 - 1)]
Replicas = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]
Seconds = Annotated[int, Field(ge=0, le=31_536_000)]
PositiveSeconds = Annotated[int, Field(ge=1, le=31_536_000)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, le=1e9)]
NonNegative = Annotated[float, Field(ge=0, le=1e9)]

Quantity = Annotated[
    int | str,
    WithJsonSchema({"x-kubernetes-int-or-string": True, "minimum": 0, "pattern": QUANTITY_PATTERN, "maxLength": 64}),
]
CountOrPercent = Annotated[
    int | str,
    WithJsonSchema(
        {"x-kubernetes-int-or-string": True, "minimum": 0, "pattern": COUNT_OR_PERCENT_PATTERN, "maxLength": 4}
    ),
]
FreeForm = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
PodTemplate = FreeForm


class SecretKey(ApiModel):
    """One value in a Secret of the same namespace. The value is read by the pod or operator that needs it and never
    copied."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """Key of the value inside the Secret."""


class Plugin(ApiModel):
    """A class of your own, found by import."""

    entrypoint: Entrypoint
    """Where the class is, as `module:Class`."""
    args: FreeForm = Field(default_factory=dict)
    """Keyword arguments for the class, passed as they are."""


class JobRef(ApiModel):
    """The RLJob, in the same namespace, that this object works for."""

    name: ObjectName
    """Name of the RLJob."""


class Resources(ApiModel):
    """Compute resources of the main container, as in a pod. A template that sets them wins."""

    requests: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)
    """What the scheduler sets aside, by resource name, such as `cpu: 4` or `memory: 16Gi`."""
    limits: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)
    """What the container may use at most, by resource name, such as `nvidia.com/gpu: 8`."""


def count_of(value: CountOrPercent, replicas: int, *, up: bool) -> int:
    """A count, or a share of the replicas as one."""
    if isinstance(value, int):
        return value
    share = replicas * int(value.removesuffix("%")) / 100
    return math.ceil(share) if up else math.floor(share)
