"""JSON is what the schema asks for, or is told where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.rollout.gateway.exchange import Refused
from trimtab.rollout.gateway.schema import check_schema, violation

PERSON: dict[str, Any] = {
    "$defs": {"name": {"type": "string", "minLength": 1, "maxLength": 5}},
    "type": "object",
    "properties": {
        "name": {"$ref": "#/$defs/name"},
        "age": {"anyOf": [{"type": "integer", "minimum": 0, "exclusiveMaximum": 150}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"enum": ["a", 1]}, "maxItems": 2},
        "kind": {"const": "person"},
    },
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('{"name": "Ada", "age": 36, "tags": ["a", 1], "kind": "person"}', None),
        ('{"name": "Ada", "age": null}', None),
        ('{"name": "Ada", "age": 36.0}', None),
        ("Ada", "it is not JSON"),
        ("[]", "$ is not of type object"),
        ('{"age": 3}', "$.name is missing"),
        ('{"name": ""}', "$.name has 0 characters"),
        ('{"name": "Augusta"}', "$.name has 7 characters"),
        ('{"name": 3}', "$.name is not of type string"),
        ('{"name": "Ada", "age": 150}', "$.age agrees with nothing in anyOf"),
        ('{"name": "Ada", "age": true}', "$.age agrees with nothing in anyOf"),
        ('{"name": "Ada", "tags": ["a", "b"]}', "$.tags[1] is none of the values in enum"),
        ('{"name": "Ada", "tags": [true]}', "$.tags[0] is none of the values in enum"),
        ('{"name": "Ada", "tags": ["a", "a", "a"]}', "$.tags has 3 items"),
        ('{"name": "Ada", "kind": "thing"}', "$.kind is not the value in const"),
        ('{"name": "Ada", "more": 1}', "$.more must not be there"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, wrong: str | None) -> None:
    check_schema(PERSON)
    found = violation(text, PERSON)
    assert found == wrong if wrong is None else found is not None and found.startswith(wrong)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string", "pattern": "a+"}, "schema.pattern is not checked here"),
        ({"properties": {"a": {"not": {}}}}, "schema.properties.a.not is not checked"),
        ({"items": 3}, "schema.items is a int"),
        ({"anyOf": [{"if": {}}]}, r"schema.anyOf\[0\].if is not checked"),
        ({"$ref": "https://example.com"}, "refer to a part of the same schema"),
    ],
)
def test_a_schema_that_could_not_be_checked_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        check_schema(schema)


def test_a_schema_without_end_is_told_and_not_followed() -> None:
    endless: dict[str, Any] = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    assert violation("1", endless) == "$ is nested too deeply"
    with pytest.raises(Refused, match="#/nowhere refers to nothing"):
        violation("1", {"$ref": "#/nowhere"})
