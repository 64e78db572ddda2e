"""Laying one piece of a pod over another, as kubectl's strategic merge patch does: mappings field by field, lists of
named things element by element, null removes, everything else replaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
