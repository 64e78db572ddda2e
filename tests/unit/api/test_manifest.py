from __future__ import annotations

from typing import Any

import pytest
import yaml

from trimtab.api.manifest import MAX_BYTES, MAX_DEPTH, UnreadableManifestError, read_manifest


def _value(text: str) -> Any:
    (document,) = read_manifest(text.encode())
    return document.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1_000", 1000),
        ("010", 8),
        ("0o10", 8),
        ("0x1F", 31),
        ("-3", -3),
        ("08", 8.0),
        (".5", 0.5),
        ("yes", True),
        ("off", False),
        ("'yes'", "yes"),
        ('"8"', "8"),
        ("!!str 8", "8"),
        ("2026-01-31", "2026-01-31"),
        ("12:30:00", "12:30:00"),
        ("1.2.3", "1.2.3"),
        ("-", "-"),
        ("7b", "7b"),
        ("9" * 500, "9" * 500),
    ],
)
def test_plain_values_mean_what_kubectl_takes_them_for(text: str, value: Any) -> None:
    read = _value(f"key: {text}" if text != "-" else "key: '-'")["key"]
    assert (read, type(read)) == (value, type(value))


def test_documents_are_numbered_and_empty_ones_left_out() -> None:
    documents = read_manifest(b"a: 1\n---\n---\n# nothing\n---\nb: 2\n")
    assert [(document.index, document.value) for document in documents] == [(1, {"a": 1}), (4, {"b": 2})]


def test_lines_are_those_of_the_keys() -> None:
    (document,) = read_manifest(b"a: 1\nb:\n  - x: 1\n  - x: 2\n    w: {z: 3}\n")
    assert document.line(("b", 1, "w", "z")) == 5
    assert document.line(("b", 1, "missing", "deeper")) == 4
    assert document.line(("b",)) == 2
    assert document.line(()) == 1


def test_aliases_and_merges_are_expanded() -> None:
    text = "base: &b {x: 1, w: 2}\nuse: {<<: *b, w: 3}\nboth: {<<: [*b, {z: 4}]}\nagain: *b\n"
    value = _value(text)
    assert value["use"] == {"x": 1, "w": 3}
    assert value["both"] == {"x": 1, "w": 2, "z": 4}
    assert value["again"] == {"x": 1, "w": 2}


def test_json_may_escape_characters_in_two_halves() -> None:
    assert _value(r'{"a": "\ud83d\ude00 \\ud83d"}') == {"a": "😀 \\ud83d"}


def _bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return "\n".join(lines)


def _chain() -> str:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, MAX_DEPTH + 5)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: [1", "not YAML"),
        (b"a: b: c", "not YAML"),
        (b"a: \x01", "not YAML"),
        (b"a: 1\na: 2", "line 2: key 'a' appears twice"),
        (b"a: {b: 1, b: 2}", "key 'b' appears twice"),
        (b"1: a", "a key must be text: put '1' in quotes"),
        (b"yes: a", "put 'yes' in quotes"),
        (b"? [a]\n: b", "a key must be text"),
        (b"a: !!python/object:os.system x", "tag .* is not allowed"),
        (b"a: !!binary aGk=", "tag .* is not allowed"),
        (b"!own {a: 1}", "tag !own is not allowed"),
        (b"a: .nan", "not a number that JSON knows"),
        (b"a: -.inf", "not a number that JSON knows"),
        (b"a: 1e999", "too large for a number"),
        (b'a: "\\ud800"', "surrogate|not YAML"),
        (b"a: *b", "points at nothing before it"),
        (b"a: &a [*a]", "points at nothing before it"),
        (b"<<: 7", "<< must merge"),
        (b"[" * 5000, "nested deeper"),
        (b"{a: " * 5000, "nested deeper"),
        (("- " * 5000).encode(), "nested deeper"),
        (b"x" * (MAX_BYTES + 1), "larger than"),
        (b"---\na: 1\n" * 1001, "more than 1000 documents"),
        (_bomb().encode(), "too many values"),
        (_chain().encode(), "nested too deep"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableManifestError, match=reason):
        read_manifest(data)


def test_ordinary_yaml_reads_as_the_yaml_library_reads_it() -> None:
    text = "a: [1, 2.5, x, {b: null}]\nc: |\n  two\n  lines\nd: >-\n  folded\n  text\ne: {}\nf: []\n"
    assert _value(text) == yaml.safe_load(text)
