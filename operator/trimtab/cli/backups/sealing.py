"""The keys of a job in its backup: whoever has them can sign weights and a ledger in the job's name, so they are there
under a passphrase, or as they are where that was asked for, or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from trimtab.cli.backups.contents import KeyStorage, UnusableBackup
from trimtab.operator.pods.job_keys import JobKeys

MIN_PASSPHRASE = 12
_SALT_BYTES = 16
_NONCE_BYTES = 12
_KEY_BYTES = 32
# 64 MiB and a fraction of a second for each guess.
_COST, _BLOCK, _PARALLEL = 1 << 16, 8, 1


class WrongPassphrase(Exception):
    """The keys cannot be had with it; the message never repeats it."""


class _Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    signing_seed: str
    ledger_key: str


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    salt: bytes
    nonce: bytes
    sealed: bytes


def passphrase_in(file: Path) -> str:
    """The first line. Raises WrongPassphrase where it is too short to protect anything."""
    text = file.read_text(encoding="utf-8").partition("\n")[0].strip()
    if len(text) < MIN_PASSPHRASE:
        raise WrongPassphrase(
            f"{file}: its first line has {len(text)} characters; at least {MIN_PASSPHRASE} are needed"
        )
    return text


def enclosed(keys: JobKeys, *, passphrase: str | None, job: str, entropy: Callable[[int], bytes] = os.urandom) -> bytes:
    """As they are without a passphrase. `job` is namespace/name."""
    plain = msgspec.json.encode(_Keys(signing_seed=keys.signing_seed, ledger_key=keys.ledger_key))
    if passphrase is None:
        return plain
    salt, nonce = entropy(_SALT_BYTES), entropy(_NONCE_BYTES)
    body = ChaCha20Poly1305(_derived(passphrase, salt)).encrypt(nonce, plain, job.encode())
    return msgspec.json.encode(_Sealed(salt=salt, nonce=nonce, sealed=body))


def opened(body: bytes, *, storage: KeyStorage, passphrase: str | None, job: str) -> JobKeys:
    """Raises WrongPassphrase and UnusableBackup."""
    try:
        plain = body
        if storage is KeyStorage.SEALED:
            if passphrase is None:
                raise WrongPassphrase("the backup's keys are under a passphrase: give it with --passphrase-file")
            sealed = msgspec.json.decode(body, type=_Sealed)
            plain = ChaCha20Poly1305(_derived(passphrase, sealed.salt)).decrypt(
                sealed.nonce, sealed.sealed, job.encode()
            )
        keys = msgspec.json.decode(plain, type=_Keys)
    except InvalidTag:
        raise WrongPassphrase("the passphrase is not the one that the backup was made with") from None
    except (msgspec.DecodeError, ValueError):
        raise UnusableBackup("the backup's keys cannot be read: it is damaged; take another one") from None
    return JobKeys(signing_seed=keys.signing_seed, ledger_key=keys.ledger_key)


def _derived(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=_KEY_BYTES, n=_COST, r=_BLOCK, p=_PARALLEL).derive(passphrase.encode())
