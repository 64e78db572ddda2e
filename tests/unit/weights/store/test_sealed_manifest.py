"""A manifest is taken only if it is whole, signed by a trusted key, sound, and the one its entry names."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zstandard

from tests.support.weights.sealed_samples import LAYOUT, anchor, delta, sha
from trimtab.fabric.signing import Signer, Verifier
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.manifest import (
    MAGIC,
    MAX_MANIFEST_BYTES,
    InvalidManifest,
    WeightManifest,
    open_sealed,
    seal,
    unseal,
)
from trimtab.weights.store.position import Position

SIGNER = Signer.generate()
VERIFIER = Verifier([SIGNER.public_text])


def opened(body: bytes, entry: Entry, *, policy: str = "p", verifier: Verifier = VERIFIER) -> WeightManifest:
    return open_sealed(body, verifier=verifier, policy=policy, entry=entry)


def repinned(body: bytes) -> WeightManifest:
    """With the digest that the changed body has, so that nothing but the signature and the rules can refuse it."""
    return unseal(body, sha256=hashlib.sha256(body).hexdigest(), verifier=VERIFIER)


def signed(plain: bytes, *, magic: bytes = MAGIC) -> bytes:
    payload = zstandard.compress(plain)
    return magic + SIGNER.sign(magic + payload) + payload


@pytest.mark.parametrize("manifest", [anchor(), *(delta(seed=seed) for seed in range(5))], ids=str)
def test_what_is_sealed_opens_as_it_was(manifest: WeightManifest) -> None:
    body = seal(manifest, SIGNER)
    assert opened(body, manifest.entry(body)) == manifest
    assert unseal(body, sha256=manifest.entry(body).manifest, verifier=VERIFIER) == manifest


def test_one_changed_bit_is_refused_wherever_it_is() -> None:
    rng = random.Random(1)
    for seed in range(500):
        manifest = delta(seed=seed) if seed % 5 else anchor(seed=seed)
        body = bytearray(seal(manifest, SIGNER))
        entry = manifest.entry(bytes(body))
        bit = rng.randrange(8 * len(body))
        body[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidManifest, match="SHA-256"):
            opened(bytes(body), entry)
        with pytest.raises(InvalidManifest, match="signature|not a sealed manifest"):
            repinned(bytes(body))


def test_every_bit_of_a_manifest_is_covered_by_the_signature() -> None:
    body = seal(delta(seed=4), SIGNER)
    repinned(body)
    for bit in range(8 * len(body)):
        changed = bytearray(body)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidManifest, match="signature|not a sealed manifest"):
            repinned(bytes(changed))


def test_truncated_and_extended_manifests_are_refused() -> None:
    body = seal(delta(seed=1), SIGNER)
    for length in range(len(body)):
        with pytest.raises(InvalidManifest, match="signature|not a sealed manifest"):
            repinned(body[:length])
    for more in (b"\0", body, zstandard.compress(b"{}")):
        with pytest.raises(InvalidManifest, match="signature"):
            repinned(body + more)


def test_a_signed_body_with_something_behind_the_frame_is_refused() -> None:
    payload = zstandard.compress(msgspec.json.encode(delta())) + b"more"
    with pytest.raises(InvalidManifest, match="decompressed"):
        repinned(MAGIC + SIGNER.sign(MAGIC + payload) + payload)


def test_only_trusted_keys_count() -> None:
    manifest = delta()
    body = seal(manifest, Signer.generate())
    with pytest.raises(InvalidManifest, match="signature is wrong"):
        opened(body, manifest.entry(body))
    body = seal(manifest, SIGNER)
    rotating = Verifier([Signer.generate().public_text, SIGNER.public_text])
    assert opened(body, manifest.entry(body), verifier=rotating) == manifest


def test_a_genuine_manifest_in_the_place_of_another_is_refused() -> None:
    """Whoever can write the catalogue, but has no key, can only serve what was signed, and only where it belongs."""
    manifest = delta(Position(1, 5), Position(1, 4))
    body = seal(manifest, SIGNER)
    true = manifest.entry(body)
    change = msgspec.structs.replace
    with pytest.raises(InvalidManifest, match="of policy p, not q"):
        opened(body, true, policy="q")
    for target in (Position(1, 6), Position(2, 5)):
        with pytest.raises(InvalidManifest, match="reordered or replayed"):
            opened(body, change(true, target=target))
    for base in (Position(1, 3), Position(0, 4), None):
        with pytest.raises(InvalidManifest, match="begins at version 4 of epoch 1, .*reordered or replayed"):
            opened(body, change(true, base=base))
    with pytest.raises(InvalidManifest, match="leads to the state"):
        opened(body, change(true, root=sha("another")))
    with pytest.raises(InvalidManifest, match="bytes to fetch"):
        opened(body, change(true, bytes=true.bytes - 1))


def test_a_decompression_bomb_is_refused_before_it_is_decompressed() -> None:
    bomb = signed(b" " * (MAX_MANIFEST_BYTES + 1))
    assert len(bomb) < 10_000
    with pytest.raises(InvalidManifest, match=f"decompresses to {MAX_MANIFEST_BYTES + 1} bytes"):
        repinned(bomb)
    # A frame that does not say its size.
    stream = zstandard.ZstdCompressor().compressobj()
    payload = stream.compress(b" " * 1000) + stream.flush()
    with pytest.raises(InvalidManifest, match="does not say to how many bytes"):
        repinned(MAGIC + SIGNER.sign(MAGIC + payload) + payload)


def test_another_format_is_refused() -> None:
    with pytest.raises(InvalidManifest, match="not a sealed manifest of format 1"):
        repinned(signed(msgspec.json.encode(delta()), magic=b"trimtab weights 2\n"))


def _set(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        place: Any = document
        for name in parents:
            place = place[int(name)] if name.isdecimal() else place[name]
        place[int(last) if last.isdecimal() else last] = value

    return change


def _without_last_block(document: dict[str, Any]) -> None:
    document["pieces"].pop()


def _with_unused_chunk(document: dict[str, Any]) -> None:
    document["chunks"].append({"sha256": sha("unused"), "size": 1})


def _with_chunk_twice(document: dict[str, Any]) -> None:
    document["chunks"].append(document["chunks"][0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set("format", 2), "format 2"),
        (_set("surprise", True), "unknown field"),
        (_set("policy", 5), "malformed"),
        (_set("target.version", -1), "malformed"),
        (_set("base", {"epoch": 1, "version": 3}), "only one of base and base_root"),
        (_set("base_root", sha("x")), "only one of base and base_root"),
        (_set("header", None), "an anchor must have a header"),
        (_set("header", "e30gICAgICA="), "not the one of its layout"),
        (_set("header", "bm90IEpTT04="), "no safetensors header"),
        (_set("layout", "AB"), "malformed"),
        (_set("root", sha("x")), "root does not follow"),
        (_set("pieces.1.digest", "00" * 16), "root does not follow"),
        (_set("pieces.1.digest", "00" * 15), "malformed"),
        (_set("pieces.1.mode", "../x"), "malformed"),
        (_set("pieces.1.base", "00" * 16), "of an anchor builds on another"),
        (_set("pieces.1.block", 0), "block 0 comes after block 0"),
        (_set("pieces.2.block", 3), "has block 3 of a layout with 3 blocks"),
        (_set("pieces.2.offset", 201), "ends at byte 301 of chunk 0, which has 300"),
        (_set("pieces.2.size", 2**53), "which has 300"),
        (_set("pieces.2.offset", -1), "malformed"),
        (_set("pieces.2.chunk", 1), "in chunk 1 of 1"),
        (_set("chunks.0.sha256", "../../etc/passwd"), "malformed"),
        (_set("created_at", 1e12), "malformed"),
        (_without_last_block, "2 of the 3 blocks"),
        (_with_unused_chunk, "1 of its chunks hold no block"),
        (_with_chunk_twice, "a chunk twice"),
    ],
)
def test_unsound_anchors_are_refused_even_when_signed(change: Callable[[dict[str, Any]], None], reason: str) -> None:
    document = msgspec.json.decode(msgspec.json.encode(anchor()))
    repinned(signed(msgspec.json.encode(document)))
    change(document)
    with pytest.raises(InvalidManifest, match=reason):
        repinned(signed(msgspec.json.encode(document)))


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (msgspec.structs.replace(delta(), header=LAYOUT.header), "a delta none"),
        (msgspec.structs.replace(delta(), base=Position(1, 5)), "back to version 5"),
        (msgspec.structs.replace(delta(), base=Position(2, 1)), "back to version 5"),
        (msgspec.structs.replace(delta(), policy=""), "malformed"),
    ],
    ids=str,
)
def test_what_readers_would_refuse_is_not_sealed(manifest: WeightManifest, reason: str) -> None:
    with pytest.raises(InvalidManifest, match=reason):
        seal(manifest, SIGNER)


@pytest.mark.parametrize("plain", [b"", b"null", b"[]", b"{", b'"\xff"'], ids=str)
def test_signed_nonsense_is_refused(plain: bytes) -> None:
    with pytest.raises(InvalidManifest, match="malformed|decompressed"):
        repinned(signed(plain))
