"""Where a pod finds the world: one typed object read from the environment and from mounted files, so that no other module
looks at os.environ and a missing or wrong value is reported by name before anything is dialled.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class NatsSettings(BaseModel):
    """How to reach the job's NATS server or cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    servers: tuple[str, ...] = Field(min_length=1)
    user: str | None = None
    password: SecretStr | None = None
    credentials_file: Path | None = None
    tls_ca_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    connect_timeout_s: float = Field(default=5.0, gt=0)
    request_timeout_s: float = Field(default=10.0, gt=0)


class ObjectStoreSettings(BaseModel):
    """How to reach the S3-compatible store that holds weights, checkpoints and oversize payloads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bucket: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str = "us-east-1"
    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None
    ca_file: Path | None = None
    connect_timeout_s: float = Field(default=5.0, gt=0)
    read_timeout_s: float = Field(default=30.0, gt=0)
