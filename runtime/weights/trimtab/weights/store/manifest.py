"""What a version consists of: its chunks, the encoded blocks in them, and the state they lead to; signed as a whole.

A sealed manifest is a magic, an Ed25519 signature and zstd-compressed JSON. The signature covers magic and JSON, and
through their digests every chunk, so nothing that a manifest leads to needs a signature of its own.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
import zstandard
from msgspec import Meta

from trimtab.fabric.signing import SIGNATURE_BYTES, Signer, Verifier, WrongSignature
from trimtab.fabric.wire.compression import compress_text, decompress
from trimtab.fabric.wire.errors import MalformedError
from trimtab.fabric.wire.values import Count, Index, Slug, UnixSeconds
from trimtab.weights.digests import root_digest
from trimtab.weights.layout import InvalidLayout, StateLayout
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.keys import chunk_key
from trimtab.weights.store.position import BlockDigest, Position, Sha256

FORMAT = 1
MAX_MANIFEST_BYTES = 64 << 20
"""Both as it is stored and when it is decompressed."""
MAGIC = b"trimtab weights 1\n"
_BODY = len(MAGIC) + SIGNATURE_BYTES


class InvalidManifest(ValueError):
    """A manifest that is not what the catalogue promised, or that no trainer of ours has signed."""


class Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object with encoded blocks, named by its digest."""

    sha256: Sha256
    size: Count


class Piece(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An encoded block: where its bytes lie, and the digests of the block before (if it builds on it) and after."""

    block: Index
    mode: Slug
    chunk: Index
    offset: Count
    size: Count
    base: BlockDigest | None
    digest: BlockDigest


class WeightManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A delta has a base and the blocks that changed; an anchor has the safetensors header and all blocks."""

    format: int
    policy: Annotated[str, Meta(min_length=1, max_length=253)]
    target: Position
    base: Position | None
    base_root: Sha256 | None
    root: Sha256
    layout: Sha256
    header: bytes | None
    chunks: tuple[Chunk, ...]
    pieces: tuple[Piece, ...]
    created_at: UnixSeconds

    def chunk_keys(self) -> dict[str, Chunk]:
        """A version's chunks lie in the folder of its own epoch."""
        epoch = self.target.epoch
        return {chunk_key(self.policy, epoch=epoch, sha256=chunk.sha256): chunk for chunk in self.chunks}

    def entry(self, sealed: bytes) -> Entry:
        """The line of the catalogue for this manifest, sealed as these bytes."""
        return Entry(
            target=self.target,
            base=self.base,
            manifest=hashlib.sha256(sealed).hexdigest(),
            bytes=len(sealed) + sum(chunk.size for chunk in self.chunks),
            root=self.root,
        )


def seal(manifest: WeightManifest, signer: Signer) -> bytes:
    """Raises InvalidManifest for one that readers would refuse."""
    plain = msgspec.json.encode(manifest)
    _decoded(plain)
    payload = compress_text(plain)
    return MAGIC + signer.sign(MAGIC + payload) + payload


def unseal(body: bytes, *, sha256: str, verifier: Verifier) -> WeightManifest:
    """The manifest in a body that must have this digest: signed, well formed and consistent in itself."""
    actual = hashlib.sha256(body).hexdigest()
    if actual != sha256:
        raise InvalidManifest(f"its SHA-256 is {actual}, not {sha256}: damaged or replaced")
    if len(body) < _BODY or not body.startswith(MAGIC):
        raise InvalidManifest(f"it is not a sealed manifest of format {FORMAT}")
    payload = body[_BODY:]
    try:
        verifier.verify(body[len(MAGIC) : _BODY], MAGIC + payload)
    except WrongSignature as error:
        raise InvalidManifest(f"its signature is wrong: {error}") from None
    return _decoded(_decompressed(payload))


def open_sealed(body: bytes, *, verifier: Verifier, policy: str, entry: Entry) -> WeightManifest:
    """Refuses anything but the manifest that the entry of this policy's catalogue names."""
    manifest = unseal(body, sha256=entry.manifest, verifier=verifier)
    check_entry(manifest, policy=policy, entry=entry)
    if (actual := manifest.entry(body).bytes) != entry.bytes:
        raise InvalidManifest(f"it takes {actual} bytes to fetch, its entry says {entry.bytes}")
    return manifest


def check_entry(manifest: WeightManifest, *, policy: str, entry: Entry) -> None:
    """A genuine manifest in another one's place would apply changes to weights they were not made for."""
    if manifest.policy != policy:
        raise InvalidManifest(f"it is of policy {manifest.policy}, not {policy}")
    if manifest.target != entry.target:
        raise InvalidManifest(f"it leads to {manifest.target}, its entry to {entry.target}: reordered or replayed")
    if manifest.base != entry.base:
        raise InvalidManifest(
            f"it begins at {manifest.base or 'nothing'}, its entry at {entry.base or 'nothing'}: reordered or replayed"
        )
    if manifest.root != entry.root:
        raise InvalidManifest(f"it leads to the state {manifest.root}, its entry to {entry.root}")


def _decompressed(payload: bytes) -> bytes:
    try:
        length = zstandard.frame_content_size(payload)
        if length < 0:
            raise InvalidManifest("it cannot be decompressed: it does not say to how many bytes")
        if length > MAX_MANIFEST_BYTES:
            raise InvalidManifest(f"it decompresses to {length} bytes, more than {MAX_MANIFEST_BYTES}")
        return decompress(payload, length=length, field="manifest")
    except (MalformedError, zstandard.ZstdError) as error:
        raise InvalidManifest(f"it cannot be decompressed: {error}") from None


def _decoded(plain: bytes) -> WeightManifest:
    if len(plain) > MAX_MANIFEST_BYTES:
        raise InvalidManifest(f"it has {len(plain)} bytes, more than {MAX_MANIFEST_BYTES}")
    try:
        manifest = msgspec.json.decode(plain, type=WeightManifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidManifest(f"it is malformed: {error}") from None
    objection = _ends_objection(manifest) or _pieces_objection(manifest) or _anchor_objection(manifest)
    if objection:
        raise InvalidManifest(objection)
    return manifest


def _ends_objection(manifest: WeightManifest) -> str | None:
    if manifest.format != FORMAT:
        return f"it has format {manifest.format}; this version reads {FORMAT}"
    if (manifest.base is None) != (manifest.base_root is None):
        return "it has only one of base and base_root"
    if (manifest.base is None) != (manifest.header is not None):
        return "an anchor must have a header, and a delta none"
    if manifest.base is not None and manifest.base >= manifest.target:
        return f"it leads from {manifest.base} back to {manifest.target}"
    return None


def _pieces_objection(manifest: WeightManifest) -> str | None:
    if len({chunk.sha256 for chunk in manifest.chunks}) != len(manifest.chunks):
        return "it names a chunk twice"
    used: set[int] = set()
    previous = -1
    for piece in manifest.pieces:
        if piece.block <= previous:
            return f"block {piece.block} comes after block {previous}"
        previous = piece.block
        if piece.chunk >= len(manifest.chunks):
            return f"block {piece.block} is in chunk {piece.chunk} of {len(manifest.chunks)}"
        size = manifest.chunks[piece.chunk].size
        if piece.offset + piece.size > size:
            end = piece.offset + piece.size
            return f"block {piece.block} ends at byte {end} of chunk {piece.chunk}, which has {size}"
        if manifest.base is None and piece.base is not None:
            return f"block {piece.block} of an anchor builds on another"
        used.add(piece.chunk)
    if len(used) != len(manifest.chunks):
        return f"{len(manifest.chunks) - len(used)} of its chunks hold no block"
    return None


def _anchor_objection(manifest: WeightManifest) -> str | None:
    """An anchor has all that its root is made of."""
    if manifest.header is None:
        return None
    try:
        layout = StateLayout.parse(manifest.header)
    except InvalidLayout as error:
        return f"its header is no safetensors header: {error}"
    if layout.digest != manifest.layout:
        return "its header is not the one of its layout, or cut into other blocks"
    if len(manifest.pieces) != len(layout.blocks):
        return f"it has {len(manifest.pieces)} of the {len(layout.blocks)} blocks of its layout"
    if manifest.pieces and manifest.pieces[-1].block != len(layout.blocks) - 1:
        return f"it has block {manifest.pieces[-1].block} of a layout with {len(layout.blocks)} blocks"
    if root_digest(layout, [bytes.fromhex(piece.digest) for piece in manifest.pieces]) != manifest.root:
        return "its root does not follow from its blocks"
    return None
