"""Signatures of checkpoints. Whatever else is written where they are stored, a trainer resumes only what a trainer of
the same job and policy signed.

A sealed pointer or index is JSON with a signature beside the exact bytes that it covers. Those name the job, the policy
and, through the digests in them, every byte of every rank's file, so that the files need no signature of their own.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from trimtab.fabric.checkpoint_seal import POINTER_MAGIC, Sealed, Signed
from trimtab.fabric.signing import Signer, Verifier, WrongSignature
from trimtab.trainer.checkpoints.index import HOW_TO_GO_ON, CheckpointDamaged, CheckpointIndex, CheckpointPointer

Content = TypeVar("Content", CheckpointPointer, CheckpointIndex)
# An index in the place of a pointer, or a manifest of weights in that of either, has another one of these. They stay
# when the format changes, so that an older one is refused for what it is.
_MAGIC = {CheckpointPointer: POINTER_MAGIC, CheckpointIndex: b"trimtab checkpoint index 2\n"}
_MOVE_AWAY = (
    "move what lies there away, or name another place in policies[].trainer.checkpoint.uri, to start from the model"
)
_KEYS = f"if the job's Secret was replaced, put its weights__signing_seed back; else {HOW_TO_GO_ON}"


class CheckpointRefused(CheckpointDamaged):
    """It is not one that a trainer of this job and policy signed, or not the newest of those. It is never resumed."""


@dataclass(frozen=True, kw_only=True)
class SealReader:
    """Opens what trainers of a policy have signed. `job` is namespace/name, or None for whichever job has the key. The
    keys are the job's own: an earlier job of that name has signed nothing for it."""

    job: str | None
    policy: str
    verifier: Verifier

    def opened(self, body: bytes, kind: type[Content], *, where: str) -> Content:
        """Nothing in the body is looked at before its signature has been checked."""
        try:
            sealed = msgspec.json.decode(body, type=Sealed)
            signature = base64.b64decode(sealed.signature, validate=True)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, binascii.Error, ValueError) as error:
            reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
            raise CheckpointRefused(f"{where} is not signed ({reason}); {_MOVE_AWAY}") from None
        signed = bytes(sealed.signed)
        try:
            self.verifier.verify(signature, _MAGIC[kind] + signed)
        except WrongSignature as error:
            raise CheckpointRefused(f"{where} is refused: it is {error}; {_KEYS}") from None
        return self._belonging(signed, kind, where=where)

    def _belonging(self, signed: bytes, kind: type[Content], *, where: str) -> Content:
        try:
            named = msgspec.json.decode(signed, type=Signed)
            content = msgspec.json.decode(named.content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CheckpointDamaged(f"{where} cannot be read ({error}); {HOW_TO_GO_ON}") from None
        if (named.job, named.policy) != (self.job or named.job, self.policy):
            raise CheckpointRefused(
                f"{where} is refused: it is of policy {named.policy} of job {named.job}, not of {self.policy} of"
                f" {self.job or named.job}; {_MOVE_AWAY}"
            )
        return content


@dataclass(frozen=True, kw_only=True)
class CheckpointSeal(SealReader):
    """Of a trainer, which signs as well."""

    job: str
    signer: Signer

    def seal(self, content: CheckpointPointer | CheckpointIndex) -> bytes:
        plain = msgspec.Raw(msgspec.json.encode(content))
        signed = msgspec.json.encode(Signed(job=self.job, policy=self.policy, content=plain))
        signature = base64.b64encode(self.signer.sign(_MAGIC[type(content)] + signed)).decode()
        return msgspec.json.encode(Sealed(signature=signature, signed=msgspec.Raw(signed)))
