"""Object names below `weights/<policy>/`. Manifests and chunks carry their SHA-256 in the name, so that writing one
twice is harmless and a listing is enough to tell what an object is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trimtab.fabric.objects.errors import InvalidKey
from trimtab.weights.store.position import Position

_NUMBER = r"[0-9]{8,16}"
_WEIGHTS = re.compile(
    rf"({_NUMBER})/(?:(obj/)|full/{_NUMBER}-|man/{_NUMBER}-|fold/{_NUMBER}-{_NUMBER}-)([0-9a-f]{{64}})", re.ASCII
)
_LEASE = re.compile(r"lease/([^/]+)")
_SINGLES = frozenset({"latest.json", "condemned.json", "kept.json", "clock"})


@dataclass(frozen=True)
class ChunkName:
    epoch: int
    sha256: str


@dataclass(frozen=True)
class ManifestName:
    epoch: int
    sha256: str


@dataclass(frozen=True)
class LeaseName:
    member: str


@dataclass(frozen=True)
class SingleName:
    """One of the few objects of which a policy has exactly one."""


Name = ChunkName | ManifestName | LeaseName | SingleName


def policy_prefix(policy: str) -> str:
    return f"weights/{_segment(policy, 'policy')}/"


def latest_key(policy: str) -> str:
    return f"{policy_prefix(policy)}latest.json"


def condemned_key(policy: str) -> str:
    return f"{policy_prefix(policy)}condemned.json"


def kept_key(policy: str) -> str:
    return f"{policy_prefix(policy)}kept.json"


def clock_key(policy: str) -> str:
    return f"{policy_prefix(policy)}clock"


def lease_prefix(policy: str) -> str:
    return f"{policy_prefix(policy)}lease/"


def lease_key(policy: str, member: str) -> str:
    return f"{lease_prefix(policy)}{_segment(member, 'member')}"


def chunk_key(policy: str, *, epoch: int, sha256: str) -> str:
    return f"{policy_prefix(policy)}{epoch:08d}/obj/{sha256}"


def manifest_key(policy: str, *, target: Position, base: Position | None, sha256: str) -> str:
    if base is None:
        name = f"full/{target.version:08d}"
    elif base.version + 1 == target.version:
        name = f"man/{target.version:08d}"
    else:
        name = f"fold/{base.version:08d}-{target.version:08d}"
    return f"{policy_prefix(policy)}{target.epoch:08d}/{name}-{sha256}"


def parse_key(policy: str, key: str) -> Name | None:
    """None for a key that nothing here writes."""
    rest = key.removeprefix(policy_prefix(policy))
    if rest in _SINGLES:
        return SingleName()
    if found := _LEASE.fullmatch(rest):
        return LeaseName(found[1])
    if found := _WEIGHTS.fullmatch(rest):
        epoch, is_chunk, sha256 = int(found[1]), found[2], found[3]
        return ChunkName(epoch, sha256) if is_chunk else ManifestName(epoch, sha256)
    return None


def _segment(text: str, what: str) -> str:
    if not text or "/" in text:
        raise InvalidKey(f"the {what} {text[:120]!r} cannot be part of an object key: it is empty or has a slash")
    return text
