"""Which layers are enough, and how they are told."""

from __future__ import annotations

import pytest

from trimtab.rollout.sandbox.layers import Layer, LayerName, described, too_little

NAMES = tuple(LayerName)


@pytest.mark.parametrize(
    ("missing", "enough"),
    [
        ((), True),
        (("namespaces",), True),
        (("landlock",), True),
        (("seccomp",), False),
        (("namespaces", "landlock"), False),
        (("namespaces", "seccomp"), False),
    ],
)
def test_either_wall_is_enough_with_a_filter(missing: tuple[str, ...], *, enough: bool) -> None:
    layers = [Layer(name, f"no {name} here" if name in missing else "") for name in NAMES]
    why = too_little(layers)
    assert (why == "") is enough
    if not enough:
        assert all(f"no {name} here" in why for name in missing)
        assert "workflow.sandbox.runtimeClassName" in why


def test_what_is_missing_is_told_with_its_reason() -> None:
    layers = [Layer(LayerName.NAMESPACES, "forbidden"), Layer(LayerName.LANDLOCK), Layer(LayerName.SECCOMP)]
    assert described(layers) == "landlock, seccomp (missing namespaces: forbidden)"
