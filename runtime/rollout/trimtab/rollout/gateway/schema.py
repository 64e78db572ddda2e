"""Whether what a policy wrote is JSON of the schema that the agent asked for.

It is checked, and not forced upon the policy: words that a grammar chose were not drawn from the
policy that is trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trimtab.rollout.gateway.exchange import Refused

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = frozenset(
    (
        *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions"),
        *("properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"),
        *("minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
_SAYS_NOTHING = frozenset(
    ("title", "description", "default", "examples", "format", "$schema", "$id", "deprecated", "discriminator")
)
_DEEPEST = 64


def check_schema(schema: object, *, field: str = "schema") -> None:
    """Raises Refused for what could not be checked later."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise Refused(f"{field} is a {type(schema).__name__}; give a JSON schema")
    for word, value in schema.items():
        if word not in _KNOWN and word not in _SAYS_NOTHING:
            raise Refused(f"{field}.{word} is not checked here; there are {', '.join(sorted(_KNOWN))}")
        inner = value.items() if word in ("properties", "$defs", "definitions") and isinstance(value, Mapping) else ()
        for name, each in inner:
            check_schema(each, field=f"{field}.{word}.{name}")
        if word in ("items", "additionalProperties"):
            check_schema(value, field=f"{field}.{word}")
        if word in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for at, each in enumerate(value):
                check_schema(each, field=f"{field}.{word}[{at}]")
        if word == "$ref" and not (isinstance(value, str) and value.startswith("#")):
            raise Refused(f"{field}.$ref is {value!r:.80}; refer to a part of the same schema")


def violation(text: str, schema: Mapping[str, Any]) -> str | None:
    """What is wrong with the text, and where; None if it is what was asked for."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    return _wrong(value, schema, at="$", root=schema, depth=0)


def _wrong(value: Any, schema: Any, *, at: str, root: Mapping[str, Any], depth: int) -> str | None:
    if depth > _DEEPEST:
        return f"{at} is nested too deeply"
    if isinstance(schema, bool):
        return None if schema else f"{at} must not be there"

    def inner(each: Any, part: Any, place: str) -> str | None:
        return _wrong(each, part, at=place, root=root, depth=depth + 1)

    if "$ref" in schema:
        found = inner(value, _referred(schema["$ref"], root), at)
        if found:
            return found
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is(value, name) for name in names):
            return f"{at} is not of type {' or '.join(map(str, names))}"
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        return f"{at} is none of the values in enum"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{at} is not the value in const"
    for part in schema.get("allOf", ()):
        found = inner(value, part, at)
        if found:
            return found
    if "anyOf" in schema and all(inner(value, part, at) for part in schema["anyOf"]):
        return f"{at} agrees with nothing in anyOf"
    if "oneOf" in schema and sum(inner(value, part, at) is None for part in schema["oneOf"]) != 1:
        return f"{at} does not agree with exactly one in oneOf"
    if isinstance(value, dict):
        return _wrong_object(value, schema, at, inner)
    if isinstance(value, list):
        return _wrong_array(value, schema, at, inner)
    return _wrong_size(value, schema, at)


def _wrong_object(value: dict[str, Any], schema: Mapping[str, Any], at: str, inner: Any) -> str | None:
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        return f"{at}.{missing[0]} is missing"
    properties = schema.get("properties", {})
    for name, each in value.items():
        part = properties[name] if name in properties else schema.get("additionalProperties", True)
        found: str | None = inner(each, part, f"{at}.{name}")
        if found:
            return found
    return None


def _wrong_array(value: list[Any], schema: Mapping[str, Any], at: str, inner: Any) -> str | None:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        return f"{at} has {len(value)} items"
    first = schema.get("prefixItems", ())
    for place, each in enumerate(value):
        part = first[place] if place < len(first) else schema.get("items", True)
        found: str | None = inner(each, part, f"{at}[{place}]")
        if found:
            return found
    return None


def _wrong_size(value: Any, schema: Mapping[str, Any], at: str) -> str | None:
    if isinstance(value, str) and not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        return f"{at} has {len(value)} characters"
    if isinstance(value, int | float) and not isinstance(value, bool):
        within = schema.get("minimum", value) <= value <= schema.get("maximum", value)
        above = "exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"]
        below = "exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"]
        if not (within and above and below):
            return f"{at} is out of bounds"
    return None


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(name, ()))


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _referred(pointer: str, root: Mapping[str, Any]) -> Any:
    part: Any = root
    for step in pointer.removeprefix("#").strip("/").split("/"):
        if step:
            part = part.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping | bool):
        raise Refused(f"schema: {pointer} refers to nothing")
    return part
