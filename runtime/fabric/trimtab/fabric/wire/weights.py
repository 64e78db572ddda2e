"""The pointer to a policy's newest weights: what trainers compare-and-swap and pools watch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from trimtab.fabric.wire.errors import InvalidFieldError
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.values import Count, Digest, Name, UnixSeconds, Version


class WeightPointer(Message, frozen=True, kw_only=True):
    """Version `version` of a policy: the manifest in object storage that describes it, pinned by digest."""

    KIND: ClassVar[int] = 10
    MAX_BYTES: ClassVar[int] = 1 << 14

    job: Name
    policy: Name
    version: Version
    epoch: Count
    """Raised when a trainer starts anew: of two writers the one with the lower epoch has lost."""
    manifest_key: Annotated[str, Meta(min_length=1, max_length=1024)]
    manifest_digest: Digest
    base_version: Version | None = None
    """The version this is a delta to, None when it stands alone."""
    size_bytes: Count
    """What a pool that has the base must fetch."""
    published_at: UnixSeconds

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base_version is not None and self.base_version >= self.version:
            raise InvalidFieldError(f"{self.base_version} is not below version {self.version}", field="base_version")
