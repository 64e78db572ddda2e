"""Ed25519 keys as NATS writes them: text whose first letters say whose it is, an operator's, an account's, a user's."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import IntEnum

import nkeys  # type: ignore[import-untyped]

_RAW_BYTES = 32


class InvalidNkey(ValueError):
    """Text that is no such key. The message never repeats it, because it may be a secret."""


class KeyKind(IntEnum):
    OPERATOR = nkeys.PREFIX_BYTE_OPERATOR
    ACCOUNT = nkeys.PREFIX_BYTE_ACCOUNT
    USER = nkeys.PREFIX_BYTE_USER


class KeyPair:
    """Holds a private key, made from its seed text (SO…, SA…, SU…)."""

    def __init__(self, seed: str, kind: KeyKind) -> None:
        text = seed.strip().encode(errors="replace")
        try:
            prefix, raw = nkeys.decode_seed(bytearray(text))
            # The decoder does not look at the checksum.
            whole = len(raw) == _RAW_BYTES and nkeys.encode_seed(bytes(raw), prefix) == text
        except (nkeys.NkeysError, ValueError, IndexError):
            whole, prefix = False, None
        if not whole or prefix != kind:
            raise InvalidNkey(
                f"not the seed of an NKey for an {kind.name.lower()}, which begins with {_beginning(kind)}"
            )
        self._raw = bytes(raw)
        self._text = text
        self._pair = nkeys.from_seed(bytearray(text))

    @classmethod
    def of(cls, raw: bytes, kind: KeyKind) -> KeyPair:
        """The pair that 32 secret bytes make."""
        return cls(nkeys.encode_seed(raw, kind).decode(), kind)

    @classmethod
    def generate(cls, kind: KeyKind, *, entropy: Callable[[int], bytes] = os.urandom) -> KeyPair:
        return cls.of(entropy(_RAW_BYTES), kind)

    @property
    def public(self) -> str:
        return str(self._pair.public_key.decode())

    @property
    def raw(self) -> bytes:
        """The private key itself, to derive others from."""
        return self._raw

    def reveal_seed(self) -> str:
        """The private key as text, to be stored as a secret and nowhere else."""
        return self._text.decode()

    def sign(self, message: bytes) -> bytes:
        return bytes(self._pair.sign(message))

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public})"


def _beginning(kind: KeyKind) -> str:
    return {KeyKind.OPERATOR: "SO", KeyKind.ACCOUNT: "SA", KeyKind.USER: "SU"}[kind]
