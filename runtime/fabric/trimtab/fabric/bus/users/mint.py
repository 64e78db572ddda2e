"""Makes the accounts of jobs and the credentials of their users from one seed, without remembering any of them.

Keys are derived: an account's from the seed, the job's uid and the role, a user's from its account's. Times are
rounded, so that within one window the same user is minted in the same bytes, by any process and however often. A user
outlives its window by another one, in which the renewed file has time to arrive where it is used.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.fabric.bus.permissions import claims_rights, keeper_rights, rights_of
from trimtab.fabric.bus.rights import Rights
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.accounts import JOB, ROLE_ACCOUNTS, job_account_plans
from trimtab.fabric.bus.users.keys import KeyKind, KeyPair
from trimtab.fabric.bus.users.limits import AccountLimits
from trimtab.fabric.bus.users.tokens import credentials_text, deletion_token, job_account_token, user_token

DEFAULT_WINDOW_S = 7 * 24 * 3600
OPERATOR_INBOX = "_INBOX_operator"
_ACCOUNT_PURPOSE = "trimtab nats account"
_USER_PURPOSE = "trimtab nats user"
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


class AccountMint:
    def __init__(
        self,
        seed: str,
        *,
        limits: AccountLimits = AccountLimits(),  # noqa: B008 - frozen
        window_s: int = DEFAULT_WINDOW_S,
        clock: Callable[[], float],
    ) -> None:
        """`seed` is that of the NATS operator that servers trust, or of one of its signing keys."""
        self._key = KeyPair(seed, KeyKind.OPERATOR)
        self._limits = limits
        self._window_s = window_s
        self._clock = clock

    @property
    def window(self) -> int:
        """The number of the present one. When it changes, users are due to be minted again."""
        return int(self._clock() // self._window_s)

    @property
    def storage_bytes(self) -> int:
        """What each job may store."""
        return self._limits.storage_bytes

    def job_accounts(self, topology: JobTopology, *, job_uid: str) -> list[str]:
        """The signed tokens of a job's accounts, those that export before those that import."""
        keys = self._job_keys(job_uid)
        plans = job_account_plans(topology)
        return [
            job_account_token(
                plan,
                keys=keys,
                signed_by=self._key,
                name=f"{topology.namespace}/{topology.job}/{name}",
                limits=self._limits,
                issued_at=self._issued_at,
            )
            for name, plan in sorted(plans.items(), key=lambda item: len(item[1].imports))
        ]

    def deletion(self, *, job_uid: str) -> str:
        """The signed request by which a server forgets the accounts of a job."""
        accounts = [key.public for key in self._job_keys(job_uid).values()]
        return deletion_token(accounts, signed_by=self._key, issued_at=self._issued_at)

    def account_keys(self, *, job_uid: str) -> dict[str, str]:
        """The public keys of a job's accounts, by name."""
        return {name: key.public for name, key in self._job_keys(job_uid).items()}

    def job_user(self, role: str, topology: JobTopology, *, job_uid: str) -> MintedUser:
        inbox = f"_INBOX_{_digest(job_uid, role)}"
        name = f"{topology.namespace}/{topology.job}/{role}"
        rights = rights_of(role, topology, inbox_prefix=inbox)
        return self._minted(self._job_key(job_uid, role), name=name, inbox=inbox, rights=rights)

    def keeper(self, *, job_uid: str) -> MintedUser:
        """The Trimtab operator's user in a job's own account."""
        rights = keeper_rights(inbox_prefix=OPERATOR_INBOX)
        return self._minted(self._job_key(job_uid, JOB), name="trimtab-operator", inbox=OPERATOR_INBOX, rights=rights)

    def administrator(self, *, job_uid: str, account: str = JOB) -> MintedUser:
        """May do everything in an account of the job, by default the one with its streams: for people who look after
        it."""
        return self._minted(self._job_key(job_uid, account), name="administrator", inbox="_INBOX", rights=None)

    def registrar(self) -> MintedUser:
        """The Trimtab operator's user in the system account, by which it tells servers of accounts."""
        rights = claims_rights(inbox_prefix=OPERATOR_INBOX)
        return self._minted(system_account(self._key), name="trimtab-registrar", inbox=OPERATOR_INBOX, rights=rights)

    @property
    def _issued_at(self) -> int:
        return self.window * self._window_s

    def _job_keys(self, job_uid: str) -> dict[str, KeyPair]:
        return {name: self._job_key(job_uid, name) for name in (JOB, *ROLE_ACCOUNTS)}

    def _job_key(self, job_uid: str, name: str) -> KeyPair:
        return _derived(self._key, KeyKind.ACCOUNT, _ACCOUNT_PURPOSE, job_uid, name)

    def _minted(self, account: KeyPair, *, name: str, inbox: str, rights: Rights | None) -> MintedUser:
        user = _derived(account, KeyKind.USER, _USER_PURPOSE, name)
        expires_at = self._issued_at + 2 * self._window_s
        token = user_token(
            user.public, signed_by=account, name=name, rights=rights, issued_at=self._issued_at, expires_at=expires_at
        )
        return MintedUser(
            name=name, inbox_prefix=inbox, credentials=credentials_text(token, user), expires_at=expires_at
        )


def system_account(operator: KeyPair) -> KeyPair:
    """The system account of a server that was set up with the operator's own seed (trust.py)."""
    return _derived(operator, KeyKind.ACCOUNT, _ACCOUNT_PURPOSE, "system")


def _derived(secret: KeyPair, kind: KeyKind, *identity: str) -> KeyPair:
    return KeyPair.of(hmac.digest(secret.raw, _joined(*identity), "sha256"), kind)


def _digest(*parts: str) -> str:
    return hashlib.sha256(_joined(*parts)).hexdigest()[:_INBOX_CHARACTERS]


def _joined(*parts: str) -> bytes:
    return "\0".join(parts).encode()
