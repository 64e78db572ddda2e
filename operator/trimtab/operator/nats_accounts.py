"""The key by which jobs have accounts of NATS: from the operator's settings, or from a Secret that it makes at its
first start.

The Secret serves a server that starts with it: it mounts the public part and waits for the Secret to be there. It has
no owner and stays when the operator goes, as accounts and their streams do.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.credentials import CredentialsFile
from trimtab.fabric.bus.users.keys import InvalidNkey
from trimtab.fabric.bus.users.mint import AccountMint
from trimtab.fabric.bus.users.trust import new_trust
from trimtab.fabric.logs import REDACTOR
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import AlreadyExists, ApiError, KubeError, TooManyRequests
from trimtab.kube.resources import SECRETS, Object
from trimtab.operator.reconcile.job_buses import AccountBuses, JobBuses, SharedBus
from trimtab.operator.settings import NatsAccountsSettings, OperatorSettings, OwnSecret

SEED_KEY = "operator.seed"
SERVER_KEY = "trust.conf"
_log = structlog.get_logger(__name__)
_BACKOFF = FullJitter(base_s=1.0, cap_s=30.0)


class AccountsUnusable(Exception):
    """The key cannot be had as things are; the message says where to look."""


async def open_mint(
    settings: NatsAccountsSettings | None, client: KubeClient, *, clock: Callable[[], float]
) -> AccountMint | None:
    """None where all pods dial with one user. Raises AccountsUnusable."""
    if settings is None:
        return None
    seed, origin = await _seed(settings, client, clock=clock)
    REDACTOR.register([seed])
    try:
        return AccountMint(seed, limits=settings.limits, window_s=settings.renewal_s, clock=clock)
    except InvalidNkey as error:
        raise AccountsUnusable(f"{origin}: {error}") from None


def job_buses(settings: OperatorSettings, mint: AccountMint | None) -> JobBuses:
    if mint is None or settings.nats_accounts is None:
        return SharedBus(settings.nats)
    file = settings.nats_accounts.system_credentials_file
    return AccountBuses(settings.nats, mint, system=None if file is None else CredentialsFile(file))


async def _seed(settings: NatsAccountsSettings, client: KubeClient, *, clock: Callable[[], float]) -> tuple[str, str]:
    """And where it is from."""
    if settings.seed is not None:
        return settings.seed.get_secret_value().strip(), "nats_accounts"
    if settings.seed_file is not None:
        try:
            return settings.seed_file.read_text(
                encoding="ascii"
            ).strip(), f"nats_accounts.seed_file {settings.seed_file}"
        except (OSError, ValueError) as error:
            problem = f"nats_accounts.seed_file: {settings.seed_file} cannot be read ({type(error).__name__})"
            raise AccountsUnusable(problem) from None
    place = settings.secret
    assert place is not None
    stored = await _stored(client, place, clock=clock)
    encoded = (stored.get("data") or {}).get(SEED_KEY)
    if encoded is None:
        raise AccountsUnusable(f"Secret {place.name} in namespace {place.namespace} has no key {SEED_KEY}; delete it")
    return base64.b64decode(encoded).decode(errors="replace").strip(), f"Secret {place.name}, key {SEED_KEY}"


async def _stored(client: KubeClient, place: OwnSecret, *, clock: Callable[[], float]) -> Object:
    """The Secret as it is, or as we make it now. An API server that does not answer is waited for."""
    attempt = 0
    while True:
        try:
            return await _found_or_made(client, place, clock=clock)
        except KubeError as error:
            if isinstance(error, ApiError) and not isinstance(error, TooManyRequests) and error.code < 500:
                problem = f"Secret {place.name} in namespace {place.namespace} cannot be had: {error}"
                raise AccountsUnusable(problem) from None
            _log.warning("accounts_wait_for_api_server", error=str(error))
            await asyncio.sleep(_BACKOFF.delay_s(attempt))
            attempt += 1


async def _found_or_made(client: KubeClient, place: OwnSecret, *, clock: Callable[[], float]) -> Object:
    found = await client.get_or_none(SECRETS, place.name, namespace=place.namespace)
    if found is not None:
        return found
    try:
        return await client.create(SECRETS, accounts_secret(place, issued_at=int(clock())), namespace=place.namespace)
    except AlreadyExists:
        # Another operator was faster: its key counts.
        return await client.get(SECRETS, place.name, namespace=place.namespace)


def accounts_secret(place: OwnSecret, *, issued_at: int) -> Object:
    """A new key."""
    trust = new_trust(issued_at=issued_at)
    data = {SEED_KEY: trust.operator_seed, SERVER_KEY: trust.server}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": place.name,
            "namespace": place.namespace,
            "labels": {"app.kubernetes.io/part-of": "trimtab", "app.kubernetes.io/component": "nats-accounts"},
        },
        "type": "Opaque",
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()},
    }
