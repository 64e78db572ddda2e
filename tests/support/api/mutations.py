"""Small damage to manifests, as typing people do it: a value of another type, a field gone, a field misspelt, an item
doubled."""

from __future__ import annotations

import copy
import random
from typing import Any

from tests.support.api.manifests import Manifest

_VALUES: tuple[Any, ...] = (None, True, False, 0, 1, -1, 7, 2**31, 0.5, -0.5, 1.0, "", "x", "8", "true", "50%", "a b")
_VALUES += ("solver", "builtin", "Auto", "dataflow", "a:B", "https://x", "s3://x", "p" * 300, [], ["solver"], [[]], {})
_VALUES += ({"name": "x"}, {"uri": "x"}, {"name": "x", "key": "y"})


def mutated(manifest: Manifest, rng: random.Random) -> Manifest:
    """A copy of `manifest` with one thing changed somewhere in its spec."""
    out = copy.deepcopy(manifest)
    parent, key = rng.choice(_places(out["spec"], out, "spec"))
    damage = rng.randrange(5)
    if damage <= 1:
        parent[key] = copy.deepcopy(rng.choice(_VALUES))
    elif damage == 2:
        del parent[key]
    elif damage == 3 and isinstance(parent, dict):
        parent[key + rng.choice("sx")] = parent.pop(key)
    elif damage == 3:
        parent.append(copy.deepcopy(parent[key]))
    elif isinstance(parent[key], (int, float)) and not isinstance(parent[key], bool):
        parent[key] = parent[key] * rng.choice((-1, 10, 1000, 0.1))
    else:
        parent[key] = [parent[key]]
    return out


def _places(value: Any, parent: Any, key: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) at and below `value`, outside the parts where anything goes."""
    places = [(parent, key)]
    if key not in ("args", "template"):
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for name, item in items:
            places += _places(item, value, name)
    return places
