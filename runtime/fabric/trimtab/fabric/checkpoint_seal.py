"""What a trainer's signed pointer to its checkpoints looks like, for those who read it without the checkpoints: the
dataflow learns from it how far a policy is known to be trained.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from trimtab.fabric.signing import Verifier, WrongSignature

POINTER_MAGIC = b"trimtab checkpoint pointer 2\n"
"""What is signed begins with it. It stays when the format changes, so that an older one is refused for what it is."""


class UnprovenCheckpoint(ValueError):
    """It is no pointer that a trainer of this job and policy has signed."""


class Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    signature: str
    signed: msgspec.Raw


class Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    job: str
    policy: str
    content: msgspec.Raw


class _Reference(msgspec.Struct, frozen=True):
    step: int


class _Pointer(msgspec.Struct, frozen=True):
    checkpoints: tuple[_Reference, ...] = ()


def proven_step(sealed: bytes, *, job: str, policy: str, verifier: Verifier) -> int:
    """The step of the newest checkpoint that a signed pointer names. `job` is namespace/name. Nothing in it is looked
    at before its signature has been checked. Raises UnprovenCheckpoint.
    """
    try:
        outer = msgspec.json.decode(sealed, type=Sealed)
        signed = bytes(outer.signed)
        verifier.verify(base64.b64decode(outer.signature, validate=True), POINTER_MAGIC + signed)
        named = msgspec.json.decode(signed, type=Signed)
        pointer = msgspec.json.decode(named.content, type=_Pointer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, binascii.Error, WrongSignature) as error:
        raise UnprovenCheckpoint(f"the pointer is not signed as it should be: {error}") from None
    if (named.job, named.policy) != (job, policy):
        raise UnprovenCheckpoint(f"the pointer is of policy {named.policy} of job {named.job}")
    if not pointer.checkpoints:
        raise UnprovenCheckpoint("the pointer names no checkpoint")
    return pointer.checkpoints[0].step
