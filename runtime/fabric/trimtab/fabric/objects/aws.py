"""boto3's clients, made in one way: where the store is, who we are to it, and whom we trust."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config

from trimtab.fabric.objects.credentials import StoreCredentials
from trimtab.fabric.settings import ObjectStoreSettings


def aws_client(
    service: str,
    store: ObjectStoreSettings,
    credentials: StoreCredentials,
    *,
    endpoint_url: str | None = None,
    attempts: int = 1,
    config: Config | None = None,
) -> Any:
    """For a service of the store, at its address or another one. It reads the authority's file when it dials.

    Signatures cover no SHA-256 of bodies, which would take as long as sending them: they cover the CRC-32 that goes
    with everything we write, and what must resist an attacker carries a digest or a signature of its own.
    """
    usual = Config(
        connect_timeout=store.connect_timeout_s,
        read_timeout=store.read_timeout_s,
        retries={"total_max_attempts": attempts},
        s3={"payload_signing_enabled": False, "addressing_style": "path" if store.endpoint_url else "auto"},
    )
    return boto3.session.Session().client(
        service,
        endpoint_url=endpoint_url or store.endpoint_url,
        region_name=store.region,
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_access_key,
        aws_session_token=credentials.session_token,
        verify=str(store.ca_file) if store.ca_file else None,
        config=usual if config is None else usual.merge(config),
    )
