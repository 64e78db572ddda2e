"""Checks a manifest offline as the API server would, and reports every problem at once instead of the first few.

The schema walked here is the one in the CRD, the rules evaluated are its CEL rules: nothing is written twice.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from trimtab.api.cel_rules import RuleEvaluationError, all_hold, holds, text, typed
from trimtab.api.crd import KINDS, Resource
from trimtab.api.model import API_VERSION, GROUP, ObjectMeta
from trimtab.api.schema import Schema, fill_defaults, structural_schema

Path = tuple[str | int, ...]

# etcd takes 1.5 MiB in one request; the server's own fields need a little of it.
MAX_OBJECT_BYTES = 1_500_000

_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_SHOWN = 100
_MOST_UNKNOWN = 50
_GENERATED_SUFFIX = "xxxxx"
_MODELS = {kind.name: kind.model for kind in KINDS}
_ARTICLES = {
    "object": "a mapping",
    "array": "a list",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where, and what to do about it."""

    path: Path
    message: str

    @property
    def field(self) -> str:
        """The path as Kubernetes writes it, such as spec.pools[0].engine.name."""
        return "".join(_step(step) for step in self.path).removeprefix(".")


class InvalidManifestError(ValueError):
    """A manifest that is not valid, with all its problems."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{problem.field}: {problem.message}" for problem in problems))
        self.problems = problems


def is_ours(value: Any) -> bool:
    """Whether a document claims to be of our API group, or claims nothing that another group would answer for."""
    version = value.get("apiVersion") if isinstance(value, dict) else None
    return not isinstance(version, str) or version.startswith(f"{GROUP}/") or value.get("kind") in _MODELS


def parse(value: Any) -> Resource:
    """The typed object in `value`, with defaults filled in; raises InvalidManifestError with every problem."""
    found = problems(value)
    if found:
        raise InvalidManifestError(found)
    return _MODELS[value["kind"]].model_validate(fill_defaults(value, _schema(value["kind"])))


def problems(value: Any) -> list[Problem]:
    """Everything that is wrong with one manifest; empty when the API server would take it as a new object."""
    if not isinstance(value, dict):
        return [Problem((), f"must be a mapping with apiVersion, kind, metadata and spec, is {_shown(value)}")]
    found = list(_header_problems(value))
    if found:
        return found
    schema = _schema(value["kind"])
    metadata = value.get("metadata")
    found = list(_name_problems(metadata)) if isinstance(metadata, dict) else []
    filled = fill_defaults(value, schema)
    if isinstance(metadata, dict) and not metadata.get("name"):
        prefix = metadata.get("generateName")
        filled["metadata"]["name"] = prefix + _GENERATED_SUFFIX if isinstance(prefix, str) and prefix else "unnamed"
    return [*found, *_size_problems(value), *_checked(filled, schema, ())]


@cache
def _schema(kind: str) -> Schema:
    schema = structural_schema(_MODELS[kind])
    schema["properties"]["metadata"] = structural_schema(ObjectMeta)
    return schema


def _header_problems(value: dict[str, Any]) -> Iterator[Problem]:
    version, kind = value.get("apiVersion"), value.get("kind")
    if version != API_VERSION:
        yield Problem(("apiVersion",), f"must be {API_VERSION}, is {_shown(version)}")
    if not isinstance(kind, str) or kind not in _MODELS:
        yield Problem(
            ("kind",), f"must be one of {', '.join(_MODELS)}, is {_shown(kind)}{_did_you_mean(kind, _MODELS)}"
        )


def _name_problems(metadata: dict[str, Any]) -> Iterator[Problem]:
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if not name and not prefix:
        yield Problem(("metadata", "name"), "is required: give the object a name")
    elif isinstance(name, str) and name and (len(name) > 253 or not _OBJECT_NAME.fullmatch(name)):
        yield Problem(
            ("metadata", "name"), "must consist of lower-case letters, digits, dashes and dots, at most 253 of them"
        )


def _size_problems(value: dict[str, Any]) -> Iterator[Problem]:
    size = _size(value)
    if size <= MAX_OBJECT_BYTES:
        return
    path: Path = ()
    part: Any = value
    while isinstance(part, dict) and part:
        name = max(part, key=lambda key: _size(part[key]))
        if _size(part[name]) < size // 2:
            break
        path, part = (*path, name), part[name]
    yield Problem(
        path,
        f"makes the object {size} bytes, about {MAX_OBJECT_BYTES} fit in etcd: move it to object storage",
    )


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _checked(value: Any, schema: Schema, path: Path) -> Iterator[Problem]:
    """Problems at and below `path`; rules run where everything below is well-formed, since they rely on it."""
    found = list(_shape_problems(value, schema, path))
    yield from found
    if not found:
        yield from _rule_problems(value, schema, path)


def _shape_problems(value: Any, schema: Schema, path: Path) -> Iterator[Problem]:
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, str):
            yield from _text_problems(value, schema, path)
        elif _is(value, "integer"):
            yield from _number_problems(value, schema, path)
        else:
            yield Problem(path, f"must be a whole number or text, is {_shown(value)}")
        return
    if not _is(value, schema["type"]):
        yield Problem(
            path, f"must be {_ARTICLES[schema['type']]}, is {_shown(value)}{_type_hint(value, schema['type'])}"
        )
    elif isinstance(value, dict):
        yield from _mapping_problems(value, schema, path)
    elif isinstance(value, list):
        yield from _list_problems(value, schema, path)
    elif isinstance(value, str):
        yield from _text_problems(value, schema, path)
    elif not isinstance(value, bool):
        yield from _number_problems(value, schema, path)


def _mapping_problems(value: dict[str, Any], schema: Schema, path: Path) -> Iterator[Problem]:
    fields = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield Problem((*path, name), f"is required: {fields[name].get('description', 'set it')}")
    if len(value) > schema.get("maxProperties", len(value)):
        yield Problem(path, f"has {len(value)} entries, at most {schema['maxProperties']} are allowed")
        return
    unknown = 0
    for name, item in value.items():
        if name in fields:
            yield from _checked(item, fields[name], (*path, name))
        elif "additionalProperties" in schema:
            yield from _checked(item, schema["additionalProperties"], (*path, name))
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            unknown += 1
            if unknown <= _MOST_UNKNOWN:
                yield Problem((*path, name), f"is not a field here{_did_you_mean(name, fields) or ': remove it'}")
    if unknown > _MOST_UNKNOWN:
        yield Problem(path, f"has {unknown - _MOST_UNKNOWN} more fields that are not known here: remove them")


def _list_problems(value: list[Any], schema: Schema, path: Path) -> Iterator[Problem]:
    least, most = schema.get("minItems", 0), schema.get("maxItems", len(value))
    if len(value) < least:
        yield Problem(path, f"must have at least {least} item{'s' if least > 1 else ''}")
    if len(value) > most:
        # Ten thousand items too many are one problem, not ten thousand.
        yield Problem(path, f"has {len(value)} items, at most {most} are allowed")
        return
    keys = schema.get("x-kubernetes-list-map-keys")
    seen: set[str] = set()
    for index, item in enumerate(value):
        yield from _checked(item, schema["items"], (*path, index))
        if keys and not (isinstance(item, dict) and all(key in item for key in keys)):
            continue
        if keys or schema.get("x-kubernetes-list-type") == "set":
            identity = json.dumps([item[key] for key in keys] if keys else item, sort_keys=True)
            if identity in seen:
                what = ", ".join(f"{key} {_shown(item[key])}" for key in keys) if keys else _shown(item)
                yield Problem((*path, index), f"{what} appears twice in the list: rename or remove one")
            seen.add(identity)


def _text_problems(value: str, schema: Schema, path: Path) -> Iterator[Problem]:
    choices = schema.get("enum")
    if choices and value not in choices:
        yield Problem(path, f"must be one of {', '.join(choices)}, is {_shown(value)}{_did_you_mean(value, choices)}")
    if len(value) < schema.get("minLength", 0):
        yield Problem(path, f"must have at least {schema['minLength']} characters")
    elif len(value) > schema.get("maxLength", len(value)):
        yield Problem(path, f"has {len(value)} characters, at most {schema['maxLength']} are allowed")
    elif "pattern" in schema and not re.fullmatch(schema["pattern"], value, re.ASCII):
        yield Problem(path, f"{_shown(value)} does not match {schema['pattern']}{_purpose(schema)}")
    if schema.get("format") == "date-time" and not _is_time(value):
        yield Problem(path, f"must be a time such as 2026-01-31T12:00:00Z, is {_shown(value)}")


def _number_problems(value: float, schema: Schema, path: Path) -> Iterator[Problem]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and (value < least or (value == least and schema.get("exclusiveMinimum"))):
        yield Problem(
            path, f"must be {'more than' if schema.get('exclusiveMinimum') else 'at least'} {least}, is {value}"
        )
    if most is not None and (value > most or (value == most and schema.get("exclusiveMaximum"))):
        yield Problem(
            path, f"must be {'less than' if schema.get('exclusiveMaximum') else 'at most'} {most}, is {value}"
        )


def _rule_problems(value: Any, schema: Schema, path: Path) -> Iterator[Problem]:
    rules = [rule for rule in schema.get("x-kubernetes-validations", ()) if "oldSelf" not in rule["rule"]]
    if not rules:
        return
    subject = typed(value, schema)
    if all_hold([rule["rule"] for rule in rules], subject):
        return
    for rule in rules:
        at = (*path, *rule.get("fieldPath", "").split(".")[1:])
        try:
            if not holds(rule["rule"], subject):
                yield Problem(
                    at, text(rule["messageExpression"], subject) if "messageExpression" in rule else rule["message"]
                )
        except RuleEvaluationError as error:
            yield Problem(at, f"rule {rule['rule']!r} cannot be evaluated: {error}")


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or value is None:
        return kind == "boolean" and value is not None
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    wanted: dict[str, Any] = {"object": dict, "array": list, "string": str, "number": (int, float)}
    return isinstance(value, wanted.get(kind, ()))


def _is_time(value: str) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    step = step[:_LONGEST_SHOWN]
    return f".{step}" if re.fullmatch(r"[\w$-]+", step) else f"[{step!r}]"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "empty"
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _type_hint(value: Any, kind: str) -> str:
    if value is None:
        return ": give it a value or remove the line"
    if isinstance(value, str) and kind in ("integer", "number", "boolean"):
        return ": remove the quotes" if re.fullmatch(r"[-+.0-9eE]+|true|false", value) else ""
    if kind == "string" and not isinstance(value, (dict, list)):
        return ": put it in quotes"
    return ""


def _did_you_mean(value: Any, known: Any) -> str:
    close = difflib.get_close_matches(str(value)[:_LONGEST_SHOWN], list(known), n=1)
    lowered = [name for name in known if str(name).lower() == str(value)[:_LONGEST_SHOWN].lower()]
    return f": did you mean {(lowered or close)[0]}?" if lowered or close else ""


def _purpose(schema: Schema) -> str:
    return f" ({schema['description']})" if "description" in schema else ""
