"""Who made an object, and making one of our own: the controller in its ownerReferences, by uid.

A name alone proves nothing, because anybody can take it, and an object that was deleted and made again is another
owner. Names are deterministic, so a name that is taken is either our own work of a moment ago or another's object.
"""

from __future__ import annotations

from typing import Any

from trimtab.api.model import API_VERSION
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import AlreadyExists, Forbidden, Invalid
from trimtab.kube.resources import Object, Resource
from trimtab.operator import event_reasons as reasons
from trimtab.operator.reconcile.objections import Objection

_FIXES = (
    ("exceeded quota", "raise the ResourceQuota or free some of it; it is tried again within a minute"),
    ("failed quota", "set what the ResourceQuota asks for in resources or in the template"),
    ("violates PodSecurity", "change the template's securityContext, or the namespace's Pod Security level"),
    ("usage per", "change resources to what the LimitRange allows, or the LimitRange"),
    ("admission webhook", "change what the webhook objects to, or the webhook's rules"),
    ("cannot create resource", "give the operator's Role the right to create it"),
)


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


class Objected(Exception):
    """It cannot be made as things are; the objection says why."""

    def __init__(self, objection: Objection) -> None:
        super().__init__(objection.message)
        self.objection = objection


class NameBusy(Exception):
    """What has the name is on its way out; try again soon."""


async def create_own(client: KubeClient, resource: Resource, body: Object, *, owner_uid: str) -> Object:
    """The object as it is now, made by us just now or earlier. Raises Objected or NameBusy."""
    metadata = body["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    try:
        return await client.create(resource, body, namespace=namespace)
    except AlreadyExists:
        present = await client.get_or_none(resource, name, namespace=namespace)
        if present is None:
            raise NameBusy(f"{resource.kind} {name} was there a moment ago") from None
        present = {"apiVersion": resource.api_version, "kind": resource.kind, **present}
        if controller_uid(present) == owner_uid:
            return present
        if is_leaving(present) or _is_predecessors(present, body):
            raise NameBusy(f"an older {resource.kind} {name} is still being deleted") from None
        raise Objected(
            Objection(
                reason=reasons.NAME_TAKEN,
                message=f"{resource.kind} {name} exists and is not this object's: delete it, or choose another name",
            )
        ) from None
    except (Invalid, Forbidden) as refusal:
        # Forbidden is also what a quota and an admission webhook say.
        reason = reasons.POD_REFUSED if resource.kind == "Pod" else reasons.NOT_ACCEPTED
        message = f"the API server refused {resource.kind} {name}: {refusal}; fix: {_fix(str(refusal))}"
        raise Objected(Objection(reason=reason, message=message)) from None


def _fix(refusal: str) -> str:
    return next((fix for sign, fix in _FIXES if sign in refusal), "change the template or resources that it objects to")


def _is_predecessors(present: Object, wanted: Object) -> bool:
    """Made by a former object of our owner's name: the garbage collector is on its way."""
    theirs, ours = controller_of(present), controller_of(wanted)
    if theirs is None or ours is None:
        return False
    return (theirs["kind"], theirs["name"]) == (ours["kind"], ours["name"])
