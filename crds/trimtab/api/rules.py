"""Cross-field rules, written once as CEL: the API server evaluates them from the CRD, `trimtab validate` evaluates the
same strings offline. A rule is an annotation on a field, or a member of a model's `rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class Rule:
    """One CEL expression over `self`; `message` says what must hold, `field` names the culprit below the rule's own
    path. `told` is a CEL expression of a text, for a message that names what it is about; where it cannot be evaluated,
    `message` stands for it."""

    expression: str
    message: str
    field: str = ""
    told: str = ""

    def wire(self) -> dict[str, str]:
        """The rule as an entry of x-kubernetes-validations."""
        entry = {"rule": self.expression, "message": self.message}
        entry |= {"fieldPath": self.field} if self.field else {}
        return entry | ({"messageExpression": self.told} if self.told else {})

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        schema["x-kubernetes-validations"] = [*schema.get("x-kubernetes-validations", ()), self.wire()]
        return schema


@dataclass(frozen=True, slots=True)
class ListMap:
    """A list whose items are told apart by `key`: server-side apply merges it by that key and refuses a key given
    twice."""

    key: str = "name"

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(core) | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}


@dataclass(frozen=True, slots=True)
class ListSet:
    """A list of scalars in which nothing may appear twice."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(core) | {"x-kubernetes-list-type": "set"}


def immutable(name: str, *, why: str) -> Rule:
    """A field that keeps the value it was created with. Give the field a default, or adding and removing it goes
    unseen."""
    return Rule("self == oldSelf", f"{name} is immutable: {why}")


def exactly_one_of(*fields: str, field: str = "") -> Rule:
    """A union: one of `fields` is set, and only one."""
    return Rule(_count(fields) + " == 1", f"set exactly one of {', '.join(fields)}", field)


def at_most_one_of(*fields: str) -> Rule:
    """An optional union: one of `fields` is set, or none."""
    return Rule(_count(fields) + " <= 1", f"set at most one of {', '.join(fields)}")


def only_with(field: str, *, condition: str, when: str) -> Rule:
    """`field` may be set only where `condition` holds; `when` says it in words."""
    return Rule(f"!has(self.{field}) || {condition}", f"{field} applies only {when}", f".{field}")


def _count(fields: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"has(self.{name})" for name in fields) + "].filter(present, present).size()"


def rules_schema(rules: tuple[Rule, ...]) -> dict[str, Any]:
    """What a model adds to its own schema for `rules`."""
    return {"x-kubernetes-validations": [rule.wire() for rule in rules]} if rules else {}
