from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from trimtab.api.crd import KINDS, custom_resource_definitions, served_schema
from trimtab.api.model import ApiModel
from trimtab.api.schema import NotStructuralError, Schema, structural_schema


def _nodes(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from _nodes(child, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in schema:
            yield from _nodes(schema[key], path + mark)


NODES = [node for kind in KINDS for node in _nodes(served_schema(kind), kind.name)]


def test_every_node_is_typed_and_self_contained() -> None:
    for path, node in NODES:
        assert not node.keys() & {"$ref", "$defs", "anyOf", "allOf", "oneOf", "title", "const"}, path
        assert ("type" in node) != node.get("x-kubernetes-int-or-string", False), path


def test_every_field_of_spec_and_status_is_documented() -> None:
    undocumented = [
        path
        for path, node in NODES
        if not path.endswith(("[]", "{}")) and ".metadata" not in path and len(node.get("description", "")) < 5
    ]
    assert undocumented == []


def test_every_list_and_text_is_bounded_so_that_rules_have_a_price() -> None:
    for path, node in NODES:
        if ".metadata" in path or path.endswith((".apiVersion", ".kind")):
            continue
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if node.get("type") == "string":
            assert node.keys() & {"maxLength", "enum", "format"}, path


def test_no_default_is_null_and_defaults_have_the_declared_type() -> None:
    types: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list}
    for path, node in NODES:
        if "default" in node and "type" in node:
            assert isinstance(node["default"], types.get(node["type"], dict)), path


def test_every_rule_has_a_message_and_points_at_a_field_that_exists() -> None:
    for path, node in NODES:
        for rule in node.get("x-kubernetes-validations", ()):
            assert rule["message"], path
            target = node
            for step in rule.get("fieldPath", "").split(".")[1:]:
                target = target["properties"][step]


def test_only_pod_templates_and_arguments_are_free_form() -> None:
    free = {path.rsplit(".", 1)[-1] for path, node in NODES if node.get("x-kubernetes-preserve-unknown-fields")}
    assert free == {"template", "trackingTemplate", "args"}


def test_the_scale_subresource_has_all_three_paths_and_the_kinds_their_names() -> None:
    found = {crd["spec"]["names"]["kind"]: crd["spec"] for crd in custom_resource_definitions()}
    version = found["RolloutPool"]["versions"][0]
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert all("status" in spec["versions"][0]["subresources"] for spec in found.values())
    assert {kind: spec["names"]["shortNames"] for kind, spec in found.items()} == {
        "RLJob": ["rlj"],
        "RolloutPool": ["rp"],
        "Trainer": ["tr"],
    }
    assert all(spec["names"]["categories"] == ["rl"] for spec in found.values())


class _Ambiguous(ApiModel):
    size: int | str


def test_a_union_of_types_is_refused_by_name() -> None:
    with pytest.raises(NotStructuralError, match=r"_Ambiguous\.size is a union of 2 types"):
        structural_schema(_Ambiguous)
