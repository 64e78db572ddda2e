"""The manifest's pod template, put into the shape of the pod we make: people name containers `worker`, `engine`,
`trainer` and `dataflow`, and need not know that engines are sidecars, one for each policy. Containers of their own that
name no image run ours, as ours do; what prepares the pod has ended before an engine starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_ENGINE = "engine"
_LISTS = ("initContainers", "containers")


def laid_out(template: Mapping[str, Any], *, sidecars: Sequence[str]) -> dict[str, Any]:
    """With what is said about sidecars among the init containers, once for each of them."""
    spec = dict(template.get("spec") or {})
    containers: list[Mapping[str, Any]] = []
    init: list[Mapping[str, Any]] = list(spec.get("initContainers") or ())
    for entry in spec.get("containers") or ():
        name = entry.get("name")
        if name == _ENGINE:
            init += [{**entry, "name": sidecar} for sidecar in sidecars]
        elif name in sidecars:
            init.append(entry)
        else:
            containers.append(entry)
    spec |= {"containers": containers, "initContainers": init}
    return {"metadata": dict(template.get("metadata") or {}), "spec": spec}


def completed(spec: Mapping[str, Any], *, like: Mapping[str, Any], sidecars: Sequence[str]) -> dict[str, Any]:
    """A merged pod's spec. `like` is what a container without an image of its own is like, unless it says otherwise."""
    filled = {
        name: [dict(entry) if entry.get("image") else {**like, **entry} for entry in spec.get(name) or ()]
        for name in _LISTS
    }
    # Merging puts what the template adds behind our sidecars, which would then wait for what it makes.
    filled["initContainers"].sort(key=lambda entry: entry.get("name") in sidecars)
    return {**spec, **filled}
