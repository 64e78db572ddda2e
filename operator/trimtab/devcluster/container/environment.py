"""A container's environment variables from env, envFrom and valueFrom, by the rules of Kubernetes."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trimtab.devcluster.container.command import expanded
from trimtab.devcluster.pod.spec import PodFacts

SourceKind = Literal["ConfigMap", "Secret"]


class SourceMissing(LookupError):
    """A ConfigMap, a Secret or a key of one is not there, and not marked as optional."""


@dataclass(frozen=True)
class Source:
    kind: SourceKind
    name: str


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The ConfigMaps and Secrets a pod refers to, as they were read; absent ones are not in it."""

    content: Mapping[Source, Mapping[str, bytes]] = field(default_factory=dict)

    def read(self, source: Source, *, optional: bool) -> Mapping[str, bytes] | None:
        found = self.content.get(source)
        if found is None and not optional:
            raise SourceMissing(f'{source.kind.lower()} "{source.name}" not found')
        return found

    def value(self, source: Source, key: str, *, optional: bool) -> bytes | None:
        found = self.read(source, optional=optional)
        if found is None:
            return None
        if key not in found and not optional:
            raise SourceMissing(f'{source.kind.lower()} "{source.name}" has no key "{key}"')
        return found.get(key)


def content_of(kind: SourceKind, item: Mapping[str, Any]) -> dict[str, bytes]:
    """The keys of a ConfigMap or Secret as bytes."""
    data = item.get("data") or {}
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in data.items()}
    binary = {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}
    return {key: value.encode() for key, value in data.items()} | binary


def sources_of(container: Mapping[str, Any]) -> set[Source]:
    return {source for source, _ in _references(container)}


def resolved(
    container: Mapping[str, Any], *, facts: PodFacts, sources: Sources, overrides: Mapping[str, str]
) -> dict[str, str]:
    """The declared variables. `overrides` are the node's own: they win, and all values may refer to them."""
    variables: dict[str, str] = dict(overrides)
    for entry in container.get("envFrom") or ():
        source, optional = _source(entry)
        prefix = entry.get("prefix") or ""
        for key, content in (sources.read(source, optional=optional) or {}).items():
            if prefix + key not in overrides:
                variables[prefix + key] = _text(content)
    for entry in container.get("env") or ():
        if entry["name"] in overrides:
            continue
        value = _value(entry, container=container, facts=facts, sources=sources, variables=variables)
        if value is not None:
            variables[entry["name"]] = value
    return variables


def _value(
    entry: Mapping[str, Any],
    *,
    container: Mapping[str, Any],
    facts: PodFacts,
    sources: Sources,
    variables: Mapping[str, str],
) -> str | None:
    """None: an optional source is not there, and then the variable is not there either."""
    origin = entry.get("valueFrom")
    if not origin:
        return expanded(entry.get("value") or "", variables)
    if "fieldRef" in origin:
        return facts.field(origin["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in origin:
        return facts.resource(origin["resourceFieldRef"], container=container)
    for field_name, kind in _KEY_REFERENCES.items():
        if field_name in origin:
            reference = origin[field_name]
            optional = bool(reference.get("optional"))
            found = sources.value(Source(kind, reference["name"]), reference["key"], optional=optional)
            return None if found is None else _text(found)
    raise SourceMissing(f"env {entry['name']}: valueFrom {', '.join(origin)} is not known on this node")


_KEY_REFERENCES: dict[str, SourceKind] = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}


def _references(container: Mapping[str, Any]) -> Iterator[tuple[Source, bool]]:
    for entry in container.get("envFrom") or ():
        yield _source(entry)
    for entry in container.get("env") or ():
        for field_name, kind in _KEY_REFERENCES.items():
            if reference := (entry.get("valueFrom") or {}).get(field_name):
                yield Source(kind, reference["name"]), bool(reference.get("optional"))


def _source(entry: Mapping[str, Any]) -> tuple[Source, bool]:
    kind: SourceKind = "ConfigMap" if entry.get("configMapRef") else "Secret"
    reference = entry.get("configMapRef") or entry["secretRef"]
    return Source(kind, reference["name"]), bool(reference.get("optional"))


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")
