"""The keys of a job that nothing but its own pods know, each shown to one role.

With a root that the operator holds they follow from the job's uid, so a job whose Secret was deleted gets the same
ones. Without one they are drawn by lot when the job begins, and its Secret is the only place that has them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from trimtab.fabric.signing import Signer

_KEY_BYTES = 32
_MIN_ROOT_CHARACTERS = 32
_SIGNING, _LEDGER = "signing", "ledger"


class InvalidRoot(ValueError):
    """Text that keys cannot be derived from. The message never repeats it."""


@dataclass(frozen=True, kw_only=True)
class JobKeys:
    """As text in base64. `signing_seed` is the trainers', `ledger_key` the dataflow's."""

    signing_seed: str = field(repr=False)
    ledger_key: str = field(repr=False)


class KeyRoot:
    """The operator's own secret. The uid of a job is never given to another."""

    def __init__(self, text: str) -> None:
        if len(text) < _MIN_ROOT_CHARACTERS:
            raise InvalidRoot(f"it has {len(text)} characters; at least {_MIN_ROOT_CHARACTERS} are needed")
        self._root = text.encode()

    @staticmethod
    def generate() -> str:
        return Signer.generate().reveal_seed()

    def derived(self, *, job_uid: str, purpose: str) -> str:
        """32 bytes in base64, which say nothing of any others."""
        info = f"trimtab {purpose} {job_uid}".encode()
        key = HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=info).derive(self._root)
        return base64.b64encode(key).decode()

    def keys(self, job_uid: str) -> JobKeys:
        return JobKeys(
            signing_seed=self.derived(job_uid=job_uid, purpose=_SIGNING),
            ledger_key=self.derived(job_uid=job_uid, purpose=_LEDGER),
        )

    def __repr__(self) -> str:
        return "KeyRoot(***)"


def new_keys(*, draw: Callable[[], str] = KeyRoot.generate) -> JobKeys:
    return JobKeys(signing_seed=draw(), ledger_key=draw())
