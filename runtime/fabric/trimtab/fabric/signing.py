"""Signatures of manifests. Pools load only what a trainer signed, whatever else is written to the bucket."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_BYTES = 64
_KEY_BYTES = 32


class InvalidSigningKey(ValueError):
    """Text that is no Ed25519 key. The message never repeats it, because it may be a secret."""


class WrongSignature(ValueError):
    """Not signed by any key we trust, or changed since."""


class Signer:
    """Holds a private key, made from its 32-byte seed in base64."""

    def __init__(self, seed_text: str) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(_decoded(seed_text, "the signing seed"))

    @classmethod
    def generate(cls, *, entropy: Callable[[int], bytes] = os.urandom) -> Signer:
        return cls(base64.b64encode(entropy(_KEY_BYTES)).decode())

    @property
    def public_text(self) -> str:
        return base64.b64encode(self._key.public_key().public_bytes_raw()).decode()

    def reveal_seed(self) -> str:
        """The private key as text, to be stored as a secret and nowhere else."""
        return base64.b64encode(self._key.private_bytes_raw()).decode()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Signer(public={self.public_text})"


class Verifier:
    """Trusts one or more public keys: during a rotation, the old one and the new one."""

    def __init__(self, public_texts: Iterable[str]) -> None:
        self._texts = tuple(public_texts)
        if not self._texts:
            raise InvalidSigningKey("a verifier needs at least one public key")
        self._keys = [Ed25519PublicKey.from_public_bytes(_decoded(text, "a public key")) for text in self._texts]

    def verify(self, signature: bytes, message: bytes) -> None:
        for key in self._keys:
            try:
                key.verify(signature, message)
            except InvalidSignature:
                continue
            return
        raise WrongSignature(f"not signed by any of the {len(self._keys)} trusted keys, or changed since")

    def __repr__(self) -> str:
        return f"Verifier({', '.join(self._texts)})"


def _decoded(text: str, what: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidSigningKey(f"{what} is not base64") from None
    if len(key) != _KEY_BYTES:
        raise InvalidSigningKey(f"{what} has {len(key)} bytes instead of {_KEY_BYTES}")
    return key
