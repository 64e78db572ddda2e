"""Who made an object: the controller in its ownerReferences, by uid. A name alone proves nothing, because anybody can
take it, and an object that was deleted and made again is another owner.
"""

from __future__ import annotations

from typing import Any

from trimtab.api.model import API_VERSION
from trimtab.kube.resources import Object


def controller_of(item: Object) -> dict[str, Any] | None:
    references = item["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)


def controller_uid(item: Object) -> str | None:
    reference = controller_of(item)
    return None if reference is None else str(reference["uid"])


def owned_by(owner: Object) -> list[dict[str, Any]]:
    """The ownerReferences of what `owner` makes."""
    metadata = owner["metadata"]
    return [
        {
            "apiVersion": API_VERSION,
            "kind": owner["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def is_leaving(item: Object) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))
