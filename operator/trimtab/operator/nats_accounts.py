"""The key by which jobs have accounts of NATS, and the connections that follow from it.

Its Secret serves a server that starts with it, too: it mounts the public part and waits for the Secret to be there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trimtab.fabric.bus.credentials import CredentialsFile
from trimtab.fabric.bus.users.keys import InvalidNkey
from trimtab.fabric.bus.users.mint import AccountMint
from trimtab.fabric.bus.users.trust import new_trust
from trimtab.kube.client import KubeClient
from trimtab.operator.own_secrets import SecretSource, SecretUnusable, own_text
from trimtab.operator.reconcile.job_buses import AccountBuses, JobBuses, SharedBus
from trimtab.operator.settings import NatsAccountsSettings, OperatorSettings

SEED_KEY = "operator.seed"
SERVER_KEY = "trust.conf"


async def open_mint(
    settings: NatsAccountsSettings | None, client: KubeClient, *, clock: Callable[[], float]
) -> AccountMint | None:
    """None where all pods dial with one user. Raises SecretUnusable."""
    if settings is None:
        return None
    own = await own_text(key_source(settings, clock=clock), client)
    try:
        return AccountMint(own.text, limits=settings.limits, window_s=settings.renewal_s, clock=clock)
    except InvalidNkey as error:
        raise SecretUnusable(f"{own.origin}: {error}") from None


def key_source(settings: NatsAccountsSettings, *, clock: Callable[[], float]) -> SecretSource:
    return SecretSource(
        setting="nats_accounts.seed",
        given=settings.seed,
        file=settings.seed_file,
        place=settings.secret,
        key=SEED_KEY,
        component="nats-accounts",
        made=lambda: _new_key(issued_at=int(clock())),
    )


def _new_key(*, issued_at: int) -> Mapping[str, str]:
    trust = new_trust(issued_at=issued_at)
    return {SEED_KEY: trust.operator_seed, SERVER_KEY: trust.server}


def job_buses(settings: OperatorSettings, mint: AccountMint | None) -> JobBuses:
    if mint is None or settings.nats_accounts is None:
        return SharedBus(settings.nats)
    file = settings.nats_accounts.system_credentials_file
    return AccountBuses(settings.nats, mint, system=None if file is None else CredentialsFile(file))
