"""What a backup says of itself, with a checksum of every file: one that is not whole, or not what was written, is told
by the name of what is wrong with it before anything is made of it.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any

import msgspec

FORMAT = 1
INDEX = "backup.json"
MANIFEST = "manifest.yaml"
KEYS = "keys.json"
STREAMS = "streams"
OBJECTS = "objects"
STATE = "state"


class KeyStorage(StrEnum):
    """How the backup has the keys that the job signs with."""

    SEALED = "sealed"
    PLAIN = "plain"
    ABSENT = "absent"


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int
    sha256: str


class StreamRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`file` is below the backup's folder; the rest is what the server needs to make the stream anew."""

    file: str
    config: dict[str, Any]
    state: dict[str, Any]


class BackupIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int = FORMAT
    namespace: str
    job: str
    made_at: float
    """Unix time."""
    keys: KeyStorage
    public_key: str
    """That of the seed that weights and checkpoints are signed with."""
    ledger_key_digest: str
    """By which the key of the ledger is known for the right one; nothing else follows from it."""
    attempts: dict[str, int]
    """By trainer, the newest attempt: the ledger refuses ranks of an older one."""
    steps: dict[str, int]
    """By policy, the step of its checkpoint."""
    streams: tuple[StreamRecord, ...]
    files: dict[str, FileRecord]
    """All others, by their path in the folder."""


class _Enclosed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    index: msgspec.Raw


class UnusableBackup(Exception):
    """It is not whole, not what was written, or of another version; the message names what."""


def encoded(index: BackupIndex) -> bytes:
    plain = msgspec.json.encode(index)
    return msgspec.json.encode(_Enclosed(sha256=hashlib.sha256(plain).hexdigest(), index=msgspec.Raw(plain)))


def decoded(body: bytes, *, where: str) -> BackupIndex:
    try:
        enclosed = msgspec.json.decode(body, type=_Enclosed)
        plain = bytes(enclosed.index)
        if hashlib.sha256(plain).hexdigest() != enclosed.sha256:
            raise UnusableBackup(f"{where} has another checksum than was written: it is damaged; take another backup")
        version = msgspec.json.decode(plain, type=dict[str, Any]).get("format")
        if version != FORMAT:
            raise UnusableBackup(f"{where} has format {version!r}, and this version of Trimtab reads {FORMAT}")
        return msgspec.json.decode(plain, type=BackupIndex)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableBackup(f"{where} cannot be read ({error}): it is damaged; take another backup") from None


def ledger_key_digest(key: str) -> str:
    return hashlib.sha256(f"trimtab ledger key of a backup\n{key}".encode()).hexdigest()[:32]
