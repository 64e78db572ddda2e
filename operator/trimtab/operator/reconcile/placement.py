"""Where a pool's pods are when they are not at home: a kubeconfig and a namespace.

It is written on the pool, with a finalizer, before the first thing is made there, so that the operator knows where to
clean up whatever happens.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from trimtab.kube.errors import NotFound
from trimtab.kube.resources import ROLLOUT_POOLS, Object
from trimtab.operator.reconcile.cluster import Cluster

FINALIZER = "rl.trimtab.dev/remote"
ANNOTATION = "rl.trimtab.dev/placement"
_LONGEST = 2048

_Namespace = Annotated[str, Meta(max_length=63, pattern=r"\A[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")]
_SecretName = Annotated[str, Meta(max_length=253, pattern=r"\A[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z")]
_SecretKey = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"\A[-._a-zA-Z0-9]+\Z")]


@dataclass(frozen=True, kw_only=True, order=True)
class Placement:
    home: str
    """The namespace at home, where the Secret is."""
    secret: str
    key: str
    namespace: str
    """The namespace there."""

    def __str__(self) -> str:
        return f"namespace {self.namespace} of the cluster in Secret {self.secret}"

    def written(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The annotation. Whoever may edit the pool may write it, so it is trusted with nothing but the pool's own."""

    home: _Namespace
    secret: _SecretName
    key: _SecretKey
    namespace: _Namespace


class _SecretRef(msgspec.Struct, frozen=True):
    name: _SecretName
    key: _SecretKey


class _Asked(msgspec.Struct, frozen=True, rename="camel"):
    """spec.cluster, as far as it says where."""

    kubeconfig_secret: _SecretRef
    namespace: _Namespace | None = None


def wanted_placement(pool: Object) -> Placement | None:
    """None for a pool at home, and where the spec is none that the API server would take today."""
    spec = pool.get("spec")
    asked = spec.get("cluster") if isinstance(spec, dict) else None
    if not asked:
        return None
    try:
        where = msgspec.convert(asked, _Asked)
    except msgspec.ValidationError:
        return None
    home = pool["metadata"]["namespace"]
    secret = where.kubeconfig_secret
    return Placement(home=home, secret=secret.name, key=secret.key, namespace=where.namespace or home)


def recorded_placement(pool: Object) -> Placement | None:
    """Where the pool says its things are; None where it says nothing that we could have written."""
    written = _annotation(pool)
    if not isinstance(written, str) or len(written) > _LONGEST:
        return None
    try:
        read = msgspec.json.decode(written, type=_Written)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    # The Secret is read with the operator's rights: another namespace's is not the pool's to name.
    if read.home != pool["metadata"]["namespace"]:
        return None
    return Placement(home=read.home, secret=read.secret, key=read.key, namespace=read.namespace)


def placement_problem(pool: Object) -> str | None:
    """What is wrong with an annotation that we did not write, with the fix. None where it is ours or absent."""
    if _annotation(pool) is None or recorded_placement(pool) is not None:
        return None
    return (
        f"metadata.annotations[{ANNOTATION}]: is none that the operator wrote, or is of another namespace; remove it, "
        "the operator writes it by itself where spec.cluster names a cluster"
    )


def _annotation(pool: Object) -> object:
    annotations = pool["metadata"].get("annotations")
    return annotations.get(ANNOTATION) if isinstance(annotations, dict) else None


def placements_of(pool: Object) -> set[Placement]:
    """Where the pool has something, and where it should."""
    return {placement for placement in (recorded_placement(pool), wanted_placement(pool)) if placement is not None}


def is_remote(pool: Object) -> bool:
    """Whether a reconcile of the pool may have to talk to another cluster."""
    return bool(placements_of(pool))


def has_remote_finalizer(pool: Object) -> bool:
    """Whether it waits, when it is deleted, until nothing of it is left elsewhere."""
    return FINALIZER in (pool["metadata"].get("finalizers") or ())


async def record_placement(cluster: Cluster, item: Object, placement: Placement) -> Object:
    """Before the first thing is made there. Raises Conflict when the pool has changed since it was read."""
    metadata = item["metadata"]
    finalizers = list(metadata.get("finalizers") or ())
    if recorded_placement(item) == placement and FINALIZER in finalizers:
        return item
    if FINALIZER not in finalizers:
        finalizers.append(FINALIZER)
    annotations = {**(metadata.get("annotations") or {}), ANNOTATION: placement.written()}
    return await _write(cluster, item, {"finalizers": finalizers, "annotations": annotations})


async def strike_placement(cluster: Cluster, item: Object) -> None:
    """When nothing of the pool's is there any more, or its cluster was given up."""
    metadata = item["metadata"]
    kept = [name for name in metadata.get("finalizers") or () if name != FINALIZER]
    others = {name: value for name, value in (metadata.get("annotations") or {}).items() if name != ANNOTATION}
    try:
        await _write(cluster, item, {"finalizers": kept, "annotations": others})
    except NotFound:
        cluster.pools.note_gone(item)


async def _write(cluster: Cluster, item: Object, changes: Object) -> Object:
    metadata = item["metadata"]
    body = {**item, "metadata": {**metadata, **changes}}
    written = await cluster.client.replace(ROLLOUT_POOLS, metadata["name"], body, namespace=metadata["namespace"])
    if written["metadata"].get("deletionTimestamp") and not written["metadata"].get("finalizers"):
        cluster.pools.note_gone(item)
    else:
        cluster.pools.note(written)
    return written
