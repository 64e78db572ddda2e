"""A line of the catalogue: one manifest, from where to where it leads, and what it costs to fetch."""

from __future__ import annotations

import msgspec

from trimtab.fabric.wire.values import Count
from trimtab.weights.store.keys import manifest_key
from trimtab.weights.store.position import Position, Sha256


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`base` is None for an anchor, which needs nothing. `bytes` counts the manifest and its chunks; `root` identifies
    the state that it leads to.
    """

    target: Position
    base: Position | None
    manifest: Sha256
    bytes: Count
    root: Sha256

    def __post_init__(self) -> None:
        if self.base is not None and self.base >= self.target:
            raise ValueError(f"an entry leads from {self.base} back to {self.target}")

    def key(self, policy: str) -> str:
        return manifest_key(policy, target=self.target, base=self.base, sha256=self.manifest)

    def __str__(self) -> str:
        return f"the anchor of {self.target}" if self.base is None else f"the delta from {self.base} to {self.target}"
