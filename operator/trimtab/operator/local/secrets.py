"""Secrets on one machine: `trimtab run` has no cluster to keep them, so they come from its own environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trimtab.api.scalars import SecretKey


class SecretMissing(LookupError):
    """A manifest names a secret that the environment does not have."""


def secret_variable(secret: SecretKey) -> str:
    """Where a secret is looked for: key `api-key` of `endpoint` in SECRET_ENDPOINT_API_KEY."""
    return "SECRET_" + re.sub(r"[^A-Z0-9]", "_", f"{secret.name}_{secret.key}".upper())


def secret_value(secret: SecretKey, environment: Mapping[str, str]) -> str:
    variable = secret_variable(secret)
    if variable not in environment:
        raise SecretMissing(f"set {variable} to the value of key {secret.key} of secret {secret.name}")
    return environment[variable]
