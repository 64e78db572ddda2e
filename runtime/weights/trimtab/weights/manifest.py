"""What a published version consists of: files by content digest. The manifest itself is pinned by the pointer to it."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

FORMAT = 1
MAX_MANIFEST_BYTES = 16 << 20


class InvalidManifest(ValueError):
    """A manifest that is not what its pointer promised."""


class WeightFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a version: its name beside the engine, and where its bytes are."""

    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=200)]
    key: Annotated[str, Meta(min_length=1, max_length=1024)]
    size: Annotated[int, Meta(ge=0)]
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class WeightManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A complete set of weights of one policy."""

    format: int
    policy: str
    version: Annotated[int, Meta(ge=0)]
    epoch: Annotated[int, Meta(ge=0)]
    files: Annotated[tuple[WeightFile, ...], Meta(min_length=1)]


def encode_manifest(manifest: WeightManifest) -> tuple[bytes, str]:
    """The manifest's bytes and their digest."""
    body = msgspec.json.encode(manifest)
    return body, digest(body)


def decode_manifest(body: bytes, *, expected_digest: str, policy: str, version: int) -> WeightManifest:
    """Refuses anything but the manifest that the pointer named."""
    if digest(body) != expected_digest:
        raise InvalidManifest(f"the manifest of {policy} version {version} does not have the digest its pointer names")
    try:
        manifest = msgspec.json.decode(body, type=WeightManifest)
    except msgspec.DecodeError as error:
        raise InvalidManifest(f"the manifest of {policy} version {version} is malformed: {error}") from None
    if (manifest.format, manifest.policy, manifest.version) != (FORMAT, policy, version):
        raise InvalidManifest(
            f"the manifest is of {manifest.policy} version {manifest.version}, format {manifest.format}"
        )
    return manifest


def digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"
