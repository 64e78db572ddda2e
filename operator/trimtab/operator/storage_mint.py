"""Credentials of object storage for each role of each job: from the store's STS, held to the role's policy and for a
while only, or given to the operator by role.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from trimtab.fabric.logs import REDACTOR
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.operator.pods.storage_policy import JobPlace, PolicyTooLong, session_policy
from trimtab.operator.settings import RoleKeySettings, StorageRoleSettings, StsSettings

_DEADLINE_S = 30.0
_RENEWALS_PER_LIFE = 3
"""A pod has two thirds of its credentials' life to be given the next ones."""


class StorageRefused(Exception):
    """Credentials cannot be had as things are; the message says why and has no secret in it."""


@dataclass(frozen=True, kw_only=True)
class StorageKeys:
    """As a pod's file has them."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)

    def as_file(self) -> str:
        return json.dumps({name: value for name, value in vars(self).items() if value is not None})


class StorageMint:
    """`clock` counts seconds. Within a window the same credentials serve."""

    def __init__(
        self, settings: StorageRoleSettings, store: ObjectStoreSettings, *, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock

    @property
    def window(self) -> int | None:
        """None where credentials do not end."""
        sts = self._settings.sts
        return None if sts is None else int(self._clock() // (sts.duration_s / _RENEWALS_PER_LIFE))

    @property
    def datasets(self) -> tuple[str, ...]:
        return self._settings.datasets

    async def keys(self, place: JobPlace, *, roles: Sequence[str], session: str) -> Mapping[str, StorageKeys]:
        """By role. Raises StorageRefused."""
        sts = self._settings.sts
        if sts is None:
            return {role: _given(self._settings.of(role)) for role in roles}
        try:
            policies = {role: session_policy(role, place) for role in roles}
        except PolicyTooLong as error:
            raise StorageRefused(str(error)) from None
        try:
            async with asyncio.timeout(_DEADLINE_S):
                made = await asyncio.to_thread(self._assumed, sts, policies, session)
        except TimeoutError:
            raise StorageRefused(f"the store's STS did not answer within {_DEADLINE_S:.0f} s") from None
        except (ClientError, BotoCoreError) as error:
            raise StorageRefused(f"the store's STS gave no credentials for {sts.role_arn}: {error}") from None
        REDACTOR.register([text for keys in made.values() for text in vars(keys).values() if text])
        return made

    def _assumed(self, sts: StsSettings, policies: Mapping[str, str], session: str) -> dict[str, StorageKeys]:
        store = self._store
        client: Any = boto3.session.Session().client(
            "sts",
            endpoint_url=sts.endpoint_url or store.endpoint_url,
            region_name=store.region,
            aws_access_key_id=store.access_key_id.get_secret_value() if store.access_key_id else None,
            aws_secret_access_key=store.secret_access_key.get_secret_value() if store.secret_access_key else None,
            verify=str(store.ca_file) if store.ca_file else None,
            config=Config(
                connect_timeout=store.connect_timeout_s, read_timeout=10.0, retries={"total_max_attempts": 2}
            ),
        )
        try:
            return {role: self._one(client, sts, policy, f"{session}-{role}") for role, policy in policies.items()}
        finally:
            client.close()

    @staticmethod
    def _one(client: Any, sts: StsSettings, policy: str, session: str) -> StorageKeys:
        answer = client.assume_role(
            RoleArn=sts.role_arn, RoleSessionName=session[:64], DurationSeconds=sts.duration_s, Policy=policy
        )["Credentials"]
        return StorageKeys(
            access_key_id=answer["AccessKeyId"],
            secret_access_key=answer["SecretAccessKey"],
            session_token=answer["SessionToken"],
        )


def _given(keys: RoleKeySettings) -> StorageKeys:
    return StorageKeys(
        access_key_id=keys.access_key_id.get_secret_value(),
        secret_access_key=keys.secret_access_key.get_secret_value(),
    )
