"""Statuses are written before anything is done, in one request, and only when they have changed.

A write names the version it was made from. When the server takes it, that version was the newest: so it also proves
that the plan was not made from a stale object. Where nothing is written the object is read instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.api.conditions import Condition, ConditionType
from trimtab.api.model import ApiModel
from trimtab.kube.resources import Object
from trimtab.operator import event_reasons as reasons
from trimtab.operator.conditions import Statement, find, updated
from trimtab.operator.reconcile.cluster import FIELD_MANAGER, KINDS, Cluster
from trimtab.operator.reconcile.objections import Objection


async def write_status(cluster: Cluster, item: Object, status: ApiModel, *, before: ApiModel | None) -> bool:
    """Whether there was anything to write. Raises Conflict when the object has changed since it was read."""
    if status == before:
        return False
    metadata = item["metadata"]
    body = {
        "metadata": {"name": metadata["name"], "resourceVersion": metadata["resourceVersion"]},
        "status": status.model_dump(mode="json", exclude_none=True),
    }
    written = await cluster.client.apply(
        KINDS[item["kind"]],
        body,
        field_manager=FIELD_MANAGER,
        namespace=metadata["namespace"],
        subresource="status",
    )
    cluster.cache_of(item["kind"]).note(written)
    return True


async def write_unreadable(cluster: Cluster, item: Object, message: str, *, now: float) -> None:
    """For an object that this version cannot read."""
    await _write_refusal(cluster, item, reasons.UNREADABLE, message, now=now)


async def write_faulted(cluster: Cluster, item: Object, message: str, *, now: float) -> None:
    """For an object at which a reconcile has failed for no reason that we know."""
    await _write_refusal(cluster, item, reasons.FAULTED, message, now=now)


async def _write_refusal(cluster: Cluster, item: Object, reason: str, message: str, *, now: float) -> None:
    """The condition Accepted alone, as the rest of the status belongs to an operator that can read the object. Once,
    however often it is said."""
    metadata = item["metadata"]
    listed = (item.get("status") or {}).get("conditions")
    raw = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    known = next((entry for entry in raw if entry.get("type") == ConditionType.ACCEPTED), None)
    if known is not None and (known.get("reason"), known.get("message")) == (reason, message):
        return
    statement = Statement(type=ConditionType.ACCEPTED, holds=False, reason=reason, message=message)
    (condition,) = updated((), [statement], generation=metadata.get("generation"), now=now)
    others = [entry for entry in raw if entry.get("type") != ConditionType.ACCEPTED]
    patch = {
        "metadata": {"resourceVersion": metadata["resourceVersion"]},
        "status": {"conditions": [*others, condition.model_dump(mode="json", exclude_none=True)]},
    }
    written = await cluster.client.patch(
        KINDS[item["kind"]], metadata["name"], patch, namespace=metadata["namespace"], subresource="status"
    )
    cluster.cache_of(item["kind"]).note(written)
    cluster.events.record(item, "Warning", reason, message)


async def is_current(cluster: Cluster, item: Object) -> bool:
    """Asks the server. If not, the newer version is noted, and the plan has to be made again."""
    metadata, cache = item["metadata"], cluster.cache_of(item["kind"])
    live = await cluster.client.get_or_none(KINDS[item["kind"]], metadata["name"], namespace=metadata["namespace"])
    if live is None:
        cache.note_gone(item)
        return False
    if live["metadata"]["resourceVersion"] == metadata["resourceVersion"]:
        return True
    cache.note(live)
    return False


def with_acceptance(
    planned: Sequence[Condition],
    *,
    before: Sequence[Condition],
    objection: Objection | None,
    generation: int | None,
    now: float,
) -> tuple[Condition, ...]:
    """The planned conditions, with Accepted as the server sees it."""
    if objection is None:
        statement = Statement(type=ConditionType.ACCEPTED, holds=True, reason="Accepted")
    else:
        statement = Statement(
            type=ConditionType.ACCEPTED, holds=False, reason=objection.reason, message=objection.message
        )
    others = [condition for condition in planned if condition.type != ConditionType.ACCEPTED]
    present = find(before, ConditionType.ACCEPTED)
    accepted = updated([] if present is None else [present], [statement], generation=generation, now=now)
    return (*others, *accepted)
