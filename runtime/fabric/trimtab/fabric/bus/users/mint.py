"""Makes the credentials of users from their account's seed, without remembering any of them.

A user's key is derived from the account's, and times are rounded: within one window the same user is minted in the same
bytes, by any process and however often. A user outlives its window by another one, in which the renewed file has time
to arrive where it is used.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.fabric.bus.permissions import operator_rights, rights_of
from trimtab.fabric.bus.rights import Rights
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.keys import KeyKind, KeyPair, checked_public_key
from trimtab.fabric.bus.users.tokens import credentials_text, user_token

DEFAULT_WINDOW_S = 7 * 24 * 3600
OPERATOR_INBOX = "_INBOX_operator"
_PURPOSE = b"trimtab nats user"
_INBOX_CHARACTERS = 20


@dataclass(frozen=True, kw_only=True)
class MintedUser:
    name: str
    inbox_prefix: str
    credentials: str
    """A secret: the token and the key that answers for it."""
    expires_at: int

    def __repr__(self) -> str:
        return f"MintedUser(name={self.name!r}, inbox_prefix={self.inbox_prefix!r}, expires_at={self.expires_at})"


class UserMint:
    def __init__(
        self, seed: str, *, account: str | None, window_s: int = DEFAULT_WINDOW_S, clock: Callable[[], float]
    ) -> None:
        """`seed` is the account's own or that of one of its signing keys; then `account` is its public key."""
        self._key = KeyPair(seed, KeyKind.ACCOUNT)
        self._account = self._key.public if account is None else checked_public_key(account, KeyKind.ACCOUNT)
        self._window_s = window_s
        self._clock = clock

    @property
    def window(self) -> int:
        """The number of the present one. When it changes, users are due to be minted again."""
        return int(self._clock() // self._window_s)

    def job_user(self, role: str, topology: JobTopology, *, job_uid: str) -> MintedUser:
        inbox = f"_INBOX_{_digest(job_uid, role)}"
        name = f"{topology.namespace}/{topology.job}/{role}"
        return self._minted(name, inbox, rights_of(role, topology, inbox_prefix=inbox), job_uid, role)

    def operator_user(self) -> MintedUser:
        rights = operator_rights(inbox_prefix=OPERATOR_INBOX)
        return self._minted("trimtab-operator", OPERATOR_INBOX, rights, "operator")

    def administrator(self) -> MintedUser:
        """May do everything in the account: for people who look after it."""
        return self._minted("administrator", "_INBOX", None, "administrator")

    def _minted(self, name: str, inbox: str, rights: Rights | None, *identity: str) -> MintedUser:
        user = KeyPair.of(hmac.digest(self._key.raw, _joined(_PURPOSE.decode(), *identity), "sha256"), KeyKind.USER)
        issued_at = self.window * self._window_s
        expires_at = issued_at + 2 * self._window_s
        token = user_token(
            user.public,
            account=self._account,
            signed_by=self._key,
            name=name,
            rights=rights,
            issued_at=issued_at,
            expires_at=expires_at,
        )
        return MintedUser(
            name=name, inbox_prefix=inbox, credentials=credentials_text(token, user), expires_at=expires_at
        )


def _digest(*parts: str) -> str:
    return hashlib.sha256(_joined(*parts)).hexdigest()[:_INBOX_CHARACTERS]


def _joined(*parts: str) -> bytes:
    return "\0".join(parts).encode()
