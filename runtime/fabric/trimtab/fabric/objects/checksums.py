"""Checksums: CRC-32 on the way in, which the store verifies, and XXH3 kept with the object, which the reader verifies.

XXH3 detects damage, not malice; what must resist an attacker carries a SHA-256 or a signature of its own.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import xxhash

from trimtab.fabric.objects.errors import ChecksumMismatch

Buffer = bytes | bytearray | memoryview
_CHUNK_BYTES = 4 * 1024 * 1024


def crc32_header(body: Buffer) -> str:
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


def digest_of(body: Buffer) -> str:
    return xxhash.xxh3_128_hexdigest(body)


def digest_of_file(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(_CHUNK_BYTES)
        view = memoryview(buffer)
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()


def verify(digest: str, *, expected: str | None, where: str) -> None:
    """An object written by something else carries no digest; its length and ETag are all there is to go by."""
    if expected is not None and digest != expected:
        raise ChecksumMismatch(f"{where} is damaged: its XXH3 is {digest}, it was written with {expected}")
