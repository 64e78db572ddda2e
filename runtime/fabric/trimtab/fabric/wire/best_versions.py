"""Which versions did best on held-out prompts: asked by a trainer before it collects weights, of the dataflow, which
keeps the scores.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from trimtab.fabric.wire.message import Message, Part
from trimtab.fabric.wire.values import Finite, Name, Version


class BestVersion(Part, frozen=True, kw_only=True):
    """The highest score on a benchmark so far, of equal ones the newest version's."""

    benchmark: Name
    version: Version
    score: Finite


class BestVersionsRequest(Message, frozen=True, kw_only=True):
    KIND: ClassVar[int] = 20
    MAX_BYTES: ClassVar[int] = 1 << 14

    job: Name
    policy: Name


class BestVersions(Message, frozen=True, kw_only=True):
    KIND: ClassVar[int] = 21
    MAX_BYTES: ClassVar[int] = 1 << 16

    policy: Name
    best: Annotated[tuple[BestVersion, ...], Meta(max_length=64)] = ()
    evaluating: Version | None = None
    """Being evaluated now: nobody knows yet whether it is the best."""
