"""The sampling settings of one task: those of the pool, with what the task wants to be different."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.worker.failures import TaskRefused


class _Changes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bounds are those of the manifest."""

    max_new_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType = UNSET
    temperature: Annotated[float, Meta(ge=0, le=100)] | UnsetType = UNSET
    top_p: Annotated[float, Meta(gt=0, le=1)] | UnsetType = UNSET
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | UnsetType = UNSET
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=16)] | UnsetType = (
        UNSET
    )


def with_changes(settings: SamplingSettings, changes: Mapping[str, Any]) -> SamplingSettings:
    """Raises TaskRefused for a key that is unknown and for a value that no engine could follow."""
    try:
        checked = msgspec.convert(changes, _Changes)
    except msgspec.ValidationError as error:
        known = ", ".join(_Changes.__struct_fields__)
        raise TaskRefused(f"sampling of the task: {error}; it may set {known}") from None
    return replace(settings, **msgspec.to_builtins(checked))
