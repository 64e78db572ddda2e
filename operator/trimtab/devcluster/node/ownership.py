"""What garbage collection does with an object, given the state of its owners, by the rules of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from trimtab.kube.client import Propagation
from trimtab.kube.resources import Object

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


class Owner(Enum):
    """WAITING: it is being deleted in the foreground, and goes after its dependants."""

    PRESENT = "present"
    WAITING = "waiting"
    ABSENT = "absent"


@dataclass(frozen=True, kw_only=True)
class Keep:
    pass


@dataclass(frozen=True, kw_only=True)
class DropReferences:
    """It has other owners: only the references to those that are gone, or going, are taken off."""

    uids: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Delete:
    propagation: Propagation


Verdict = Keep | DropReferences | Delete


def verdict(item: Object, owners: Mapping[str, Owner], *, has_dependants: bool) -> Verdict:
    """`owners` by the uids of the item's references."""
    if not owners or "deletionTimestamp" in item["metadata"]:
        return Keep()
    leaving = frozenset(uid for uid, owner in owners.items() if owner is not Owner.PRESENT)
    if not leaving:
        return Keep()
    if len(leaving) < len(owners):
        return DropReferences(uids=leaving)
    finalizers = item["metadata"].get("finalizers") or ()
    if has_dependants and Owner.WAITING in owners.values():
        return Delete(propagation="Foreground")
    if ORPHAN in finalizers:
        return Delete(propagation="Orphan")
    if FOREGROUND in finalizers:
        return Delete(propagation="Foreground")
    return Delete(propagation="Background")


def blocks(item: Object, *, owner_uid: str) -> bool:
    """Whether the owner's foreground deletion has to wait for this dependant."""
    return any(
        reference["uid"] == owner_uid and reference.get("blockOwnerDeletion")
        for reference in item["metadata"].get("ownerReferences") or ()
    )


def is_waiting(item: Object) -> bool:
    metadata = item["metadata"]
    return "deletionTimestamp" in metadata and FOREGROUND in (metadata.get("finalizers") or ())
