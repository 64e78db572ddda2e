"""Why a message was refused. Everything the wire raises is a WireError, so a reader needs one except clause to survive
any bytes, and its counters can be labelled by `reason` without parsing text.
"""

from __future__ import annotations

from typing import ClassVar


class WireError(Exception):
    """A message that cannot be read or must not be sent. `field` is the path of the offending value, `$` the whole."""

    reason: ClassVar[str] = "wire"

    def __init__(self, detail: str, *, field: str = "$") -> None:
        super().__init__(detail, field)
        self.detail = detail
        self.field = field

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail} (at {self.field})"


class MagicError(WireError):
    """The bytes do not start like one of our frames."""

    reason = "bad_magic"


class KindError(WireError):
    """A frame of ours, but not the message asked for."""

    reason = "wrong_kind"


class VersionError(WireError):
    """A newer major version, or a flag this reader does not know: upgrade the reader."""

    reason = "unsupported_version"


class TruncatedError(WireError):
    """The frame ends before the length it declares."""

    reason = "truncated"


class TrailingBytesError(WireError):
    """The frame goes on after the length it declares."""

    reason = "trailing_bytes"


class ChecksumError(WireError):
    """The bytes changed on their way."""

    reason = "checksum_mismatch"


class OversizeError(WireError):
    """Larger than this kind of message may be, before or after decompression."""

    reason = "oversize"


class MalformedError(WireError):
    """The checksum holds but the body is not valid zstd or MessagePack: the sender is broken or hostile."""

    reason = "malformed"


class DepthError(WireError):
    """Nested deeper than any reader should have to follow."""

    reason = "too_deep"


class InvalidFieldError(WireError, ValueError):
    """A value of the wrong type or outside its bounds. Also a ValueError, so that msgspec adds the path to it."""

    reason = "invalid_field"
