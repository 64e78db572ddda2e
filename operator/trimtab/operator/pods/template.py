"""The manifest's pod template, put into the shape of the pod we make and laid over it.

People name containers `worker`, `engine`, `sandbox`, `trainer` and `dataflow`, and need not know that some of them are
sidecars, engines one or more for each policy; `engine-<policy>` are those of one. Containers of their own that name no
image run ours, as ours do; what prepares the pod has ended before an engine starts. One piece is laid over another as
kubectl's strategic merge patch does it: mappings field by field, lists of named things element by element, null
removes, everything else replaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_ENGINE = "engine"
_FURTHER = re.compile(r"^engine-[0-9]+-")
_LISTS = ("initContainers", "containers")
# The patchMergeKey of the pod API, by the name of the field that holds the list.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "schedulingGates": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}


def laid_out(template: Mapping[str, Any], *, sidecars: Sequence[str]) -> dict[str, Any]:
    """With what is said about sidecars among the init containers, once for each of them."""
    spec = dict(template.get("spec") or {})
    containers: list[Mapping[str, Any]] = []
    init: list[Mapping[str, Any]] = list(spec.get("initContainers") or ())
    for entry in spec.get("containers") or ():
        name = entry.get("name")
        meant = [sidecar for sidecar in sidecars if name in _names(sidecar)]
        init += [{**entry, "name": sidecar} for sidecar in meant]
        if not meant:
            containers.append(entry)
    spec |= {"containers": containers, "initContainers": init}
    return {"metadata": dict(template.get("metadata") or {}), "spec": spec}


def _names(sidecar: str) -> tuple[str, ...]:
    """That mean this one."""
    if not sidecar.startswith(f"{_ENGINE}-"):
        return (sidecar,)
    return (_ENGINE, sidecar, _FURTHER.sub(f"{_ENGINE}-", sidecar))


def completed(spec: Mapping[str, Any], *, like: Mapping[str, Any], sidecars: Sequence[str]) -> dict[str, Any]:
    """A merged pod's spec. `like` is what a container without an image of its own is like, unless it says otherwise."""
    filled = {
        name: [dict(entry) if entry.get("image") else {**like, **entry} for entry in spec.get(name) or ()]
        for name in _LISTS
    }
    # Merging puts what the template adds behind our sidecars, which would then wait for what it makes.
    filled["initContainers"].sort(key=lambda entry: entry.get("name") in sidecars)
    return {**spec, **filled}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`; neither is changed."""
    result = dict(below)
    for field, value in above.items():
        if value is None:
            result.pop(field, None)
        elif isinstance(value, Mapping):
            base = result.get(field)
            result[field] = merged(base if isinstance(base, Mapping) else {}, value)
        elif _is_list(value) and field in _KEYS and all(isinstance(element, Mapping) for element in value):
            base = result.get(field)
            result[field] = _merged_list(base if _is_list(base) else (), value, key=_KEYS[field])
        else:
            result[field] = value
    return result


def _merged_list(below: Any, above: Sequence[Mapping[str, Any]], *, key: str) -> list[dict[str, Any]]:
    result = [dict(element) for element in below]
    places = {element.get(key): place for place, element in enumerate(result)}
    for element in above:
        place = places.get(element.get(key))
        if place is None:
            places[element.get(key)] = len(result)
            result.append(merged({}, element))
        else:
            result[place] = merged(result[place], element)
    return result


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
