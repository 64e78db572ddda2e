"""A manifest is taken only if it is the one the pointer named."""

from __future__ import annotations

import json

import pytest

from trimtab.weights.manifest import (
    InvalidManifest,
    WeightFile,
    WeightManifest,
    decode_manifest,
    digest,
    encode_manifest,
)

FILE = WeightFile(name="model.safetensors", key="weights/p/x", size=3, sha256="ab" * 32)
MANIFEST = WeightManifest(format=1, policy="p", version=7, epoch=2, files=(FILE,))


def test_round_trip() -> None:
    body, pinned = encode_manifest(MANIFEST)
    assert decode_manifest(body, expected_digest=pinned, policy="p", version=7) == MANIFEST


def test_other_bytes_than_those_pinned_are_refused() -> None:
    body, pinned = encode_manifest(MANIFEST)
    with pytest.raises(InvalidManifest, match="digest"):
        decode_manifest(body.replace(b'"version":7', b'"version":8'), expected_digest=pinned, policy="p", version=8)


@pytest.mark.parametrize(("policy", "version"), [("q", 7), ("p", 8)])
def test_the_manifest_of_something_else_is_refused(policy: str, version: int) -> None:
    body, pinned = encode_manifest(MANIFEST)
    with pytest.raises(InvalidManifest, match="is of p version 7"):
        decode_manifest(body, expected_digest=pinned, policy=policy, version=version)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"files": []},
        {"files": [{"name": "../../etc/passwd", "key": "k", "size": 1, "sha256": "ab" * 32}]},
        {"files": [{"name": "a/b", "key": "k", "size": 1, "sha256": "ab" * 32}]},
        {"files": [{"name": ".hidden", "key": "k", "size": 1, "sha256": "ab" * 32}]},
        {"files": [{"name": "a", "key": "k", "size": -1, "sha256": "ab" * 32}]},
        {"files": [{"name": "a", "key": "k", "size": 1, "sha256": "AB"}]},
        {"version": -1},
        {"surprise": True},
        {"policy": 5},
    ],
    ids=str,
)
def test_malformed_manifests_are_refused_even_when_pinned(change: dict[str, object]) -> None:
    value = json.loads(encode_manifest(MANIFEST)[0]) | change
    body = json.dumps(value).encode()
    with pytest.raises(InvalidManifest):
        decode_manifest(body, expected_digest=digest(body), policy="p", version=7)


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidManifest, match="malformed"):
        decode_manifest(b"\x00", expected_digest=digest(b"\x00"), policy="p", version=7)
