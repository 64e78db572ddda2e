"""Credentials from a store's security token service: for a while only, and held to a policy. Each call dials anew, so
that an authority that was renewed is trusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from trimtab.fabric.objects.aws import aws_client
from trimtab.fabric.objects.credentials import StoreCredentials, read_credentials
from trimtab.fabric.objects.errors import STORE_FAULTS, ObjectStoreError, StoreTimeout, translated
from trimtab.fabric.settings import ObjectStoreSettings


async def assumed_role(
    store: ObjectStoreSettings,
    role_arn: str,
    *,
    policies: Mapping[str, str],
    session: str,
    endpoint_url: str | None,
    duration_s: int,
    deadline_s: float,
) -> dict[str, StoreCredentials]:
    """With each of the policies, under its name. Raises an ObjectStoreError."""

    def assume() -> dict[str, StoreCredentials]:
        client = aws_client("sts", store, read_credentials(store), endpoint_url=endpoint_url, attempts=2)
        try:
            return {
                name: _credentials(
                    client.assume_role(
                        RoleArn=role_arn,
                        RoleSessionName=f"{session}-{name}"[:64],
                        DurationSeconds=duration_s,
                        Policy=policy,
                    )["Credentials"]
                )
                for name, policy in policies.items()
            }
        finally:
            client.close()

    doing = f"assume {role_arn}"
    try:
        async with asyncio.timeout(deadline_s):
            return await asyncio.to_thread(assume)
    except TimeoutError:
        raise StoreTimeout(f"{doing}: not done within {deadline_s:.3g} s") from None
    except STORE_FAULTS as fault:
        raise _clean(translated(fault, doing=doing), store) from None


def _credentials(answer: Mapping[str, Any]) -> StoreCredentials:
    return StoreCredentials(
        access_key_id=answer["AccessKeyId"],
        secret_access_key=answer["SecretAccessKey"],
        session_token=answer["SessionToken"],
    )


def _clean(error: ObjectStoreError, store: ObjectStoreSettings) -> ObjectStoreError:
    if store.secret_access_key is not None:
        error.args = (str(error).replace(store.secret_access_key.get_secret_value(), "***"), *error.args[1:])
    return error
