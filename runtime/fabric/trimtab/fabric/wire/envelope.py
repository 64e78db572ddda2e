"""The frame around every message, and the only two calls most code needs: encode and decode.

    magic 4s | kind u8 | major u8 | minor u8 | flags u8 | stored u32 | length u32 | xxh3 u64 | stored bytes

All little-endian. `stored` is the length of what follows, `length` of the MessagePack body after decompression. The checksum
covers the sixteen bytes before it and everything after it, so no flipped bit is ever read as data. It is no signature: who may
publish is NATS's business, and the body is checked as if it came from an enemy.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, TypeVar, cast, overload

import xxhash
import zstandard

from trimtab.fabric.wire.errors import (
    BadMagic,
    ChecksumMismatch,
    Malformed,
    Oversize,
    TrailingBytes,
    Truncated,
    UnsupportedVersion,
    WrongKind,
)
from trimtab.fabric.wire.message import Message, from_body, to_body
