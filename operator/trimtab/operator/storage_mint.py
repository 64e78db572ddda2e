"""Credentials of object storage for each role of each job: from the store's STS, held to the role's policy and for a
while only, or given to the operator by role.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trimtab.fabric.objects.credentials import StoreCredentials
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.fabric.objects.sts import assumed_role
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.operator.pods.storage_policy import JobPlace, PolicyTooLong, session_policy
from trimtab.operator.settings import StorageRoleSettings

_DEADLINE_S = 30.0
_RENEWALS_PER_LIFE = 3
"""A pod has two thirds of its credentials' life to be given the next ones."""


class StorageRefused(Exception):
    """Credentials cannot be had as things are; the message says why and has no secret in it."""


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

    @property
    def models(self) -> tuple[str, ...]:
        return self._settings.models

    async def keys(self, place: JobPlace, *, roles: Sequence[str], session: str) -> Mapping[str, StoreCredentials]:
        """By role. Raises StorageRefused."""
        sts = self._settings.sts
        if sts is None:
            return {role: self._given(role) for role in roles}
        try:
            return await assumed_role(
                self._store,
                sts.role_arn,
                policies={role: session_policy(role, place) for role in roles},
                session=session,
                endpoint_url=sts.endpoint_url,
                duration_s=sts.duration_s,
                deadline_s=_DEADLINE_S,
            )
        except PolicyTooLong as error:
            raise StorageRefused(str(error)) from None
        except ObjectStoreError as error:
            raise StorageRefused(f"the store gives no credentials to the job's pods: {error}") from None

    def _given(self, role: str) -> StoreCredentials:
        keys = self._settings.of(role)
        if keys is None:
            raise StorageRefused(
                f"the store has no keys for {role} pods: set TRIMTAB_STORAGE_ROLES__{role.upper()}__ACCESS_KEY_ID and"
                " …__SECRET_ACCESS_KEY (objectStore.existing.roles of the chart)"
            )
        return StoreCredentials(
            access_key_id=keys.access_key_id.get_secret_value(),
            secret_access_key=keys.secret_access_key.get_secret_value(),
        )
