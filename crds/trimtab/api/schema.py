"""From pydantic's JSON schema to a Kubernetes structural schema: no references, no null unions, every node typed, and
defaults that the API server can fill in level by level.
"""

from __future__ import annotations

import copy
from typing import Any

from trimtab.api.model import ApiModel

Schema = dict[str, Any]

_COPIED = (
    "type",
    "format",
    "description",
    "default",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
)
_READ = {"$ref", "$defs", "title", "anyOf", "const", "properties", "items", "additionalProperties"}
_READ |= {"exclusiveMinimum", "exclusiveMaximum"}


class NotStructuralError(TypeError):
    """A type has no structural form; the message says which."""


def structural_schema(model: type[ApiModel]) -> Schema:
    """The structural schema of `model`, self-contained."""
    document = model.model_json_schema(by_alias=True, mode="validation")
    return _structural(document, document.get("$defs", {}), model.__name__)


def fill_defaults(value: Any, schema: Schema) -> Any:
    """`value` as the API server would store it: nulls dropped, and absent fields that have a default given it, level by
    level. Returns a copy.
    """
    if isinstance(value, dict) and "properties" in schema:
        fields = schema["properties"]
        filled = {key: item for key, item in value.items() if item is not None or key not in fields}
        for key, field in fields.items():
            if key not in filled and "default" in field:
                filled[key] = copy.deepcopy(field["default"])
            if key in filled:
                filled[key] = fill_defaults(filled[key], field)
        return filled
    if isinstance(value, dict) and "additionalProperties" in schema:
        inner = schema["additionalProperties"]
        return {key: fill_defaults(item, inner) for key, item in value.items() if item is not None}
    if isinstance(value, list) and "items" in schema:
        return [fill_defaults(item, schema["items"]) for item in value]
    return value


def _structural(node: Schema, definitions: dict[str, Schema], where: str) -> Schema:
    node = _without_indirection(node, definitions, where)
    unknown = node.keys() - _READ - set(_COPIED)
    if unknown:
        raise NotStructuralError(
            f"{where}: {sorted(unknown)} has no place in a structural schema; choose a simpler type"
        )
    out: Schema = {key: node[key] for key in _COPIED if key in node}
    for bound in ("minimum", "maximum"):
        exclusive = f"exclusive{bound.capitalize()}"
        if exclusive in node:
            out |= {bound: node[exclusive], exclusive: True}
    if "const" in node:
        out["enum"] = [node["const"]]
    if "properties" in node:
        out["properties"] = {
            key: _structural(child, definitions, f"{where}.{key}") for key, child in node["properties"].items()
        }
    elif isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = _structural(node["additionalProperties"], definitions, f"{where}{{}}")
    if "items" in node:
        out["items"] = _structural(node["items"], definitions, f"{where}[]")
    if "type" not in out and "x-kubernetes-int-or-string" not in out:
        raise NotStructuralError(f"{where} has no type")
    if out.get("default", ...) is None:
        del out["default"]
    elif isinstance(out.get("default"), dict):
        out["default"] = _default(out["default"], out)
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    return out


def _without_indirection(node: Schema, definitions: dict[str, Schema], where: str) -> Schema:
    """`node` with its reference or its `X | null` union replaced by what it stands for; what is said beside it wins."""
    while "$ref" in node or "anyOf" in node:
        beside = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
        if "$ref" in node:
            target = definitions[node["$ref"].removeprefix("#/$defs/")]
        else:
            branches = [branch for branch in node["anyOf"] if branch.get("type") != "null"]
            if len(branches) != 1:
                raise NotStructuralError(
                    f"{where} is a union of {len(branches)} types; name the alternatives as optional fields"
                )
            target = branches[0]
        rules = [*target.get("x-kubernetes-validations", ()), *beside.get("x-kubernetes-validations", ())]
        node = target | beside | ({"x-kubernetes-validations": rules} if rules else {})
    return node


def _default(default: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """`default` less what the fields' own defaults fill in anyway, so that one number is written in one place. Where
    rules read the fields it is written out, because the server checks a default against the rules before it fills in
    the fields.
    """
    if "x-kubernetes-validations" in schema:
        return dict(fill_defaults(_without_nulls(default), schema))
    own = fill_defaults({}, schema)
    return {key: value for key, value in _without_nulls(default).items() if own.get(key, ...) != value}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value
