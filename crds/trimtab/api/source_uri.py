"""What a `uri` of a manifest names when it is no path: a repository of a Hugging Face hub, or objects below a prefix.
Whoever fetches it and whoever reads it work out the same place for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from trimtab.api.rules import Rule

HUB = "hf://"
OBJECTS = "s3://"
_NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"
_REPOSITORY = f"{_NAME}/{_NAME}(@{_NAME})?"
_OBJECTS = "s3://[a-z0-9][a-z0-9.-]+[a-z0-9](/[^?#]*)?"
_HUB = re.compile(
    rf"hf://(?P<kind>datasets/)?(?P<name>{_NAME}/{_NAME})(@(?P<revision>{_NAME}))?(/(?P<path>.*))?", re.ASCII
)

MODEL_URI = Rule(
    f"!self.contains('://') || (!self.contains('..') && self.matches('^(hf://{_REPOSITORY}|{_OBJECTS})$'))",
    "must be a folder, hf://org/name or hf://org/name@revision, or s3://bucket/prefix",
)
PROMPT_URI = Rule(
    f"!self.startsWith('hf:') || (!self.contains('..') && self.matches('^hf://datasets/{_REPOSITORY}(/[^?#]+)?$'))",
    "must be hf://datasets/org/name/path or hf://datasets/org/name@revision/path",
)


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """Files of one repository at one revision; without one, at the newest of its main branch."""

    kind: Literal["model", "dataset"]
    repository: str
    revision: str | None = None
    path: str = ""
    """Of a file or folder in it; all of it when empty."""

    @property
    def uri(self) -> str:
        """Without the path: what is fetched."""
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{HUB}{'datasets/' if self.kind == 'dataset' else ''}{self.repository}{revision}"


@dataclass(frozen=True, kw_only=True)
class ObjectSource:
    """Objects below a prefix of a bucket."""

    bucket: str
    prefix: str

    path: ClassVar[str] = ""

    @property
    def uri(self) -> str:
        return f"{OBJECTS}{self.bucket}/{self.prefix}"


Source = HubSource | ObjectSource


def source_of(uri: str) -> Source | None:
    """None for a path, and for what the rules of the API refuse: nobody has put that anywhere."""
    if uri.startswith(OBJECTS):
        bucket, _, prefix = uri.removeprefix(OBJECTS).partition("/")
        return ObjectSource(bucket=bucket, prefix=prefix) if bucket else None
    match = _HUB.fullmatch(uri)
    if match is None or ".." in uri:
        return None
    return HubSource(
        kind="model" if match["kind"] is None else "dataset",
        repository=match["name"],
        revision=match["revision"],
        path=(match["path"] or "").strip("/"),
    )


def folder_name(source: Source) -> str:
    """Of the folder that it is fetched to, below the one for all of them: its last name for people, and a digest."""
    named = source.repository if isinstance(source, HubSource) else source.prefix.strip("/") or source.bucket
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", named.rpartition("/")[2])[:40].lstrip(".")
    return f"{plain}-{hashlib.sha256(source.uri.encode()).hexdigest()[:12]}"


def place_below(uri: str) -> str | None:
    """Where what the uri names lies below the folder that sources are fetched to; None for a path."""
    source = source_of(uri)
    if source is None:
        return None
    return "/".join(_parts(source))


def _parts(source: Source) -> Iterator[str]:
    yield folder_name(source)
    if source.path:
        yield source.path
