"""Reads YAML manifests from people: plain data and line numbers, within limits, or a reason.

The reader works on libyaml's event stream with a stack of its own, so that depth, size and alias expansion are bounded
before anything is built, and plain scalars mean what they mean to kubectl (`1e-6` is a number, `yes` a boolean, a date
a text).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_BYTES = 3 * 1024 * 1024  # what the API server takes in one request
MAX_DEPTH = 100
MAX_NODES = 1_000_000  # counted with aliases expanded
MAX_DOCUMENTS = 1000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TRUE = {"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"}
_FALSE = {"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"}
_NULL = {"", "~", "null", "Null", "NULL"}
_INTEGER = re.compile(r"[-+]?(0[bB][01]+|0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# JSON escapes characters beyond the basic plane as two halves, which YAML does not know.
_SURROGATE_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})")
_TAGS = {
    f"tag:yaml.org,2002:{name}": name for name in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp")
}


class UnreadableManifestError(ValueError):
    """The text is not a manifest that can be checked; the message says why and, where known, on which line."""

    def __init__(self, reason: str, *, line: int | None = None) -> None:
        super().__init__(reason if line is None else f"line {line}: {reason}")
        self.line = line


@dataclass(slots=True)
class Marks:
    """Line numbers of a value and of everything below it, in the value's own shape."""

    line: int
    below: dict[str | int, Marks] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document."""

    index: int
    value: Any
    marks: Marks

    def line(self, path: tuple[str | int, ...]) -> int:
        """The line of the value at `path`, or of the nearest thing above it that is there."""
        marks = self.marks
        for step in path:
            if step not in marks.below:
                break
            marks = marks.below[step]
        return marks.line


@dataclass(slots=True)
class _Node:
    value: Any
    marks: Marks
    weight: int = 1
    depth: int = 1
    text: str | None = None
    merge: bool = False


@dataclass(slots=True)
class _Open:
    """A mapping or sequence whose end has not been seen."""

    node: _Node
    anchor: str | None
    key: _Node | None = None
    merged: list[_Node] = field(default_factory=list)


def read_manifest(data: bytes) -> list[Document]:
    """The documents in `data`, empty ones left out."""
    if len(data) > MAX_BYTES:
        raise UnreadableManifestError(f"larger than {MAX_BYTES} bytes, the most the API server takes: split it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableManifestError(f"not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    if text.lstrip().startswith("{"):
        text = _SURROGATE_PAIR.sub(lambda pair: pair[1] + json.loads(f'"{pair[2]}"'), text)
    try:
        return list(_documents(text))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise UnreadableManifestError(f"not YAML: {error.problem or error.context}", line=line) from error
    except yaml.YAMLError as error:
        raise UnreadableManifestError(f"not YAML: {' '.join(str(error).split())}") from error


def _documents(text: str) -> Iterator[Document]:
    stack: list[_Open] = []
    anchors: dict[str, _Node] = {}
    index = weight = 0
    for event in yaml.parse(text, Loader=_LOADER):
        assert event.start_mark is not None
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            index, weight, anchors = index + 1, 0, {}
            if index > MAX_DOCUMENTS:
                raise UnreadableManifestError(f"more than {MAX_DOCUMENTS} documents: split it", line=line)
            continue
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            if event.tag not in (None, "!") and _TAGS.get(event.tag) not in ("map", "seq"):
                raise UnreadableManifestError(f"tag {event.tag[:60]} is not allowed: write plain values", line=line)
            value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
            stack.append(_Open(_Node(value, Marks(line)), event.anchor))
            if len(stack) > MAX_DEPTH:
                raise UnreadableManifestError(f"nested deeper than {MAX_DEPTH} levels", line=line)
            continue
        if isinstance(event, yaml.ScalarEvent):
            node, anchor = _scalar(event, line), event.anchor
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise UnreadableManifestError(f"alias *{event.anchor!s:.60} points at nothing before it", line=line)
            node, anchor = anchors[event.anchor], None
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            node, anchor = _closed(stack[-1], line), stack.pop().anchor
        else:
            continue
        if anchor is not None:
            anchors[anchor] = node
        weight += node.weight if isinstance(event, yaml.AliasEvent) else 1
        if weight > MAX_NODES or len(stack) + node.depth > MAX_DEPTH + 1:
            raise UnreadableManifestError("too many values once aliases are expanded, or nested too deep", line=line)
        if stack:
            _put(stack[-1], node, line)
        elif node.value is not None:
            yield Document(index, node.value, node.marks)


def _put(parent: _Open, node: _Node, line: int) -> None:
    """Adds a finished value to the mapping or sequence it stands in."""
    value = parent.node.value
    if isinstance(value, list):
        parent.node.marks.below[len(value)] = node.marks
        value.append(node.value)
    elif parent.key is None:
        if not isinstance(node.value, str):
            fix = "write a name" if node.text is None else f"put {node.text[:60]!r} in quotes"
            raise UnreadableManifestError(f"a key must be text: {fix}", line=line)
        if node.value in value:
            raise UnreadableManifestError(
                f"key {node.value[:60]!r} appears twice in one mapping: remove one", line=line
            )
        parent.key = node
        return
    elif parent.key.merge:
        parent.merged.append(node)
        parent.key = None
    else:
        # The key's line, not the value's: that is where a person looks.
        key, parent.key = parent.key, None
        parent.node.marks.below[key.value] = Marks(key.marks.line, node.marks.below)
        value[key.value] = node.value
    parent.node.weight += node.weight
    parent.node.depth = max(parent.node.depth, node.depth + 1)


def _closed(opened: _Open, line: int) -> _Node:
    """The finished container, with what `<<` merges into it filled in behind its own keys."""
    node = opened.node
    for merged in opened.merged:
        listed = isinstance(merged.value, list)
        for part, marks in (
            [(item, merged.marks.below[at]) for at, item in enumerate(merged.value)]
            if listed
            else [(merged.value, merged.marks)]
        ):
            if not isinstance(part, dict):
                raise UnreadableManifestError("<< must merge a mapping or a list of mappings", line=line)
            for key, value in part.items():
                if key not in node.value:
                    node.value[key] = value
                    node.marks.below[key] = marks.below[key]
    return node


def _scalar(event: yaml.ScalarEvent, line: int) -> _Node:
    text = event.value
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UnreadableManifestError("text with half a surrogate pair", line=line)
    kind = None
    if event.tag not in (None, "!"):
        kind = _TAGS.get(event.tag)
        if kind in (None, "map", "seq"):
            raise UnreadableManifestError(f"tag {event.tag[:60]} is not allowed: write plain values", line=line)
    plain = event.implicit[0]
    value = text if kind in ("str", "timestamp") or (kind is None and not plain) else _resolved(text, line)
    return _Node(value, Marks(line), text=text, merge=plain and text == "<<")


def _resolved(text: str, line: int) -> Any:
    """What a plain scalar means, by the rules of the YAML reader in kubectl."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if not (text[0].isdigit() or text[0] in "+-."):
        return text
    number = text.replace("_", "")
    if _NOT_FINITE.fullmatch(text):
        raise UnreadableManifestError(f"{text[:40]} is not a number that JSON knows", line=line)
    if len(number) <= 400 and _INTEGER.fullmatch(number):
        return _integer(number)
    if len(number) <= 400 and _FLOAT.fullmatch(number):
        value = float(number)
        if not math.isfinite(value):
            raise UnreadableManifestError(f"{text[:40]} is too large for a number", line=line)
        return value
    return text


def _integer(number: str) -> int:
    sign, digits = (-1 if number[0] == "-" else 1), number.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        digits = f"0o{digits[1:]}"
    return sign * int(digits, 0)
