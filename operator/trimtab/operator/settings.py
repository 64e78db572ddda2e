"""What the operator is told: where to work, what the pods of jobs dial with, how fast to go.

The same names as in a pod: TRIMTAB_NATS__… and TRIMTAB_OBJECT_STORE__… are handed on to the jobs' pods.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from trimtab.fabric.bus.users.limits import AccountLimits
from trimtab.fabric.bus.users.mint import DEFAULT_WINDOW_S
from trimtab.fabric.settings import LogSettings, NatsSettings, ObjectStoreSettings, ProbeSettings
from trimtab.operator.stream_limits import StreamDefaults


class LeaseSettings(BaseModel):
    """The Lease by which one of several operators works and the others wait."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "trimtab-operator"
    namespace: str | None = None
    """Absent, the namespace the operator runs in."""
    duration_s: int = Field(default=15, ge=3)
    """How long a silent holder keeps it. It is renewed five times as often."""


class RemoteSettings(BaseModel):
    """How other clusters are dealt with, each by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deadline_s: float = Field(default=10.0, gt=0)
    """For one request there."""
    probe_s: float = Field(default=15.0, gt=0)
    """How often a cluster is asked whether it is still there."""
    retry_s: float = Field(default=5.0, gt=0)
    """Between attempts to reach a cluster that is away, at most, doubled each time …"""
    longest_retry_s: float = Field(default=320.0, gt=0)
    """… up to this."""
    reread_s: float = Field(default=60.0, gt=0)
    """How often the Secret with the kubeconfig is read again; also before each attempt to reach the cluster."""
    sweep_s: float = Field(default=60.0, gt=0)
    """How often things there are looked for whose pool is gone."""
    calls_per_cluster: int = Field(default=4, ge=1, le=256)
    """Pools in one cluster that are reconciled at once."""


class TranscriptSettings(BaseModel):
    """What agent maintainers said and were told, for people to look up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path = Path(tempfile.gettempdir()) / "trimtab-transcripts"
    newest: int = Field(default=50, ge=1)
    """Kept of each job."""


class AgentEgressSettings(BaseModel):
    """Where the endpoints of agent maintainers may be, beside public addresses."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    allowed_cidrs: tuple[str, ...] = ()

    @field_validator("allowed_cidrs", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return _listed(value)

    @field_validator("allowed_cidrs")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for cidr in value:
            ipaddress.ip_network(cidr)
        return value

    @property
    def networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        return tuple(ipaddress.ip_network(cidr) for cidr in self.allowed_cidrs)


class JobNetworkSettings(BaseModel):
    """The NetworkPolicies that the operator makes for each job; see trimtab.operator.pods.network."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dns_ports: tuple[int, ...] = (53,)
    scrapers: dict[str, Any] = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    """The peer that may read metrics."""
    server_cidrs: tuple[str, ...] = ("0.0.0.0/0", "::/0")
    """Where NATS, object storage and engine servers are that have a name outside the cluster. Of all addresses,
    link-local ones are left out."""
    egress: tuple[dict[str, Any], ...] = ()
    """Rules of a NetworkPolicy for all jobs, beside what pods need themselves."""

    @field_validator("dns_ports", "server_cidrs", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return _listed(value)


class ImageSettings(BaseModel):
    """Images of the pods of jobs, by role, or one name for all; a template may name others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataflow: str = Field(min_length=1)
    rollout: str = Field(min_length=1)
    trainer: str = Field(min_length=1)
    tracking: str | None = Field(default=None, min_length=1)
    """Absent, jobs that write to trackers are refused."""

    @model_validator(mode="before")
    @classmethod
    def _one_for_all(cls, value: object) -> object:
        return dict.fromkeys(cls.model_fields, value) if isinstance(value, str) else value

    def of(self, role: str) -> str:
        """That of pods with the role."""
        image: str | None = getattr(self, role)
        assert image is not None
        return image


class RequestSettings(BaseModel):
    """What containers of jobs request of a node where neither the manifest nor a template names a request or limit:
    amounts by the resource's name. Without any, a pod is the first to be evicted when its node is short of memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataflow: dict[str, str] = {}
    rollout: dict[str, str] = {}
    engine: dict[str, str] = {}
    trainer: dict[str, str] = {}
    tracking: dict[str, str] = {}

    def of(self, role: str) -> dict[str, str]:
        """For the main container of pods with the role, or for each engine."""
        amounts: dict[str, str] = getattr(self, role)
        return amounts


class OwnSecret(BaseModel):
    """A Secret that the operator makes when it is not there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    namespace: str = Field(min_length=1)


class NatsAccountsSettings(BaseModel):
    """The key that signs the accounts of jobs, which NATS servers trust, and what each job may have there."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    seed: SecretStr | None = None
    """SO…: that of the NATS operator, or better of one of its signing keys."""
    seed_file: Path | None = None
    """The same in a file."""
    secret: OwnSecret | None = None
    """The same in a Secret, beside what a NATS server includes in its configuration to trust it."""
    system_credentials_file: Path | None = None
    """Of a user of the server's system account. Absent, one is made: for a server set up from the same seed."""
    renewal_s: int = Field(default=DEFAULT_WINDOW_S, ge=1)
    """How often users are made anew. One lasts for twice as long, at most."""
    limits: AccountLimits = AccountLimits()

    @model_validator(mode="after")
    def _complete(self) -> NatsAccountsSettings:
        given = [name for name in ("seed", "seed_file", "secret") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of seed, seed_file and secret; given: {', '.join(given) or 'none'}")
        if self.system_credentials_file is not None and self.secret is not None:
            raise ValueError("system_credentials_file: not with secret, whose server has a system account of its own")
        return self


class JobKeySettings(BaseModel):
    """What the keys of jobs are derived from: a job whose Secret was deleted is then given the same keys again."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    root: SecretStr | None = None
    """At least 32 characters."""
    root_file: Path | None = None
    """The same in a file."""
    secret: OwnSecret | None = None
    """The same in a Secret."""

    @model_validator(mode="after")
    def _complete(self) -> JobKeySettings:
        given = [name for name in ("root", "root_file", "secret") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of root, root_file and secret; given: {', '.join(given) or 'none'}")
        return self


class StsSettings(BaseModel):
    """The store's security token service, which gives out credentials that are held to a policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role_arn: str = Field(min_length=20)
    """A role that may do to the bucket what jobs do, and that only the operator's own user may assume."""
    endpoint_url: str | None = None
    """Absent, that of the object store."""
    duration_s: int = Field(default=3600, ge=900, le=43_200)
    """How long credentials last. They are made anew three times in it."""


class RoleKeySettings(BaseModel):
    """Keys of a user of the store, for the pods of one role of all jobs."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    access_key_id: SecretStr
    secret_access_key: SecretStr


class StorageRoleSettings(BaseModel):
    """Credentials of object storage by role: from an STS for each job, or keys that the administrator made."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    sts: StsSettings | None = None
    rollout: RoleKeySettings | None = None
    dataflow: RoleKeySettings | None = None
    trainer: RoleKeySettings | None = None
    tracking: RoleKeySettings | None = None
    """Beside the other three, for jobs that write to trackers."""
    datasets: tuple[str, ...] = ()
    """Buckets, or bucket/prefix, from which the dataflow of every job may read prompts; with an STS only."""

    models: tuple[str, ...] = ()
    """Buckets, or bucket/prefix, from which all pods of every job may read models; with an STS only."""

    @field_validator("datasets", "models", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(item.strip() for item in value.split(",") if item.strip())
        return value

    @model_validator(mode="after")
    def _complete(self) -> StorageRoleSettings:
        roles = ("rollout", "dataflow", "trainer")
        given = [role for role in (*roles, "tracking") if getattr(self, role) is not None]
        if self.sts is not None and given:
            raise ValueError(f"give sts or keys by role, not both; given besides sts: {', '.join(given)}")
        if self.sts is None and not {*roles} <= {*given}:
            raise ValueError(f"give sts, or keys for each of rollout, dataflow and trainer; given: {given or 'none'}")
        return self

    def of(self, role: str) -> RoleKeySettings | None:
        keys: RoleKeySettings | None = getattr(self, role)
        return keys


class AdmissionSettings(BaseModel):
    """The webhook that the API server asks about RLJobs, RolloutPools and Trainers. Its certificate is in a folder
    that another program fills, or it is the operator's own, in a Secret."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = ""
    """The address it listens at; empty: all."""
    port: int = Field(default=9443, ge=1, le=65535)
    certificate_folder: Path | None = None
    """With tls.crt and tls.key, which may be renewed there, as cert-manager does."""
    secret: OwnSecret | None = None
    """Where the operator keeps the certificate that it makes and renews itself."""
    server_name: str = ""
    """The name or address by which the API server dials, for that certificate."""
    webhook: str = ""
    """The ValidatingWebhookConfiguration that is told of that certificate's authority."""

    @model_validator(mode="after")
    def _complete(self) -> AdmissionSettings:
        if (self.certificate_folder is None) == (self.secret is None):
            raise ValueError("give one of certificate_folder and secret")
        if self.secret is not None and not (self.server_name and self.webhook):
            raise ValueError("secret: needs server_name and webhook too")
        return self


class OperatorSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    nats: NatsSettings
    nats_accounts: NatsAccountsSettings | None = None
    """By which each job has accounts of its own."""
    nats_sync_interval: Annotated[float, Field(gt=0)] | Literal["always"] | None = None
    """As the NATS servers are set up, in seconds, for what jobs' condition Durable says; absent, it is not known."""
    shared_nats_account: Literal["all-pods-trust-one-another"] | None = None
    """Instead: all pods of all jobs dial with the operator's own user, and each may read, forge and delete what the
    others have."""
    job_keys: JobKeySettings | None = None
    """Absent, the keys of a job are nowhere but in its Secret: when that is lost after the job has begun, the job is
    refused."""
    object_store: ObjectStoreSettings
    storage_roles: StorageRoleSettings | None = None
    """Absent, pods of all roles and jobs have the operator's own credentials of the object store."""
    remote_nats: NatsSettings | None = None
    """What pods in other clusters dial with instead: an address that they can reach, and a user of lesser rights, which
    is made for them with `nats_accounts`."""
    remote_object_store: ObjectStoreSettings | None = None
    remote: RemoteSettings = RemoteSettings()
    admission: AdmissionSettings | None = None
    """Absent, manifests are judged only once they are there, in the condition Accepted."""
    job_network: JobNetworkSettings | None = None
    """Absent, no NetworkPolicies are made for jobs."""
    images: ImageSettings
    image_pull_secrets: tuple[str, ...] = ()
    """Names of Secrets in the namespaces of jobs, with which their images are pulled; a template may name others."""
    requests: RequestSettings = RequestSettings()
    streams: StreamDefaults = StreamDefaults()
    """What jobs' streams may take, where a job does not say it itself."""
    service_account: str | None = None
    """The operator's own, in the lease's namespace: no template may name it."""
    namespaces: tuple[str, ...] = ()
    """Empty: the whole cluster."""
    logs: LogSettings = LogSettings()
    probes: ProbeSettings = ProbeSettings()
    lease: LeaseSettings = LeaseSettings()
    transcripts: TranscriptSettings = TranscriptSettings()
    agent_egress: AgentEgressSettings = AgentEgressSettings()
    identity: str = Field(default_factory=lambda: f"{socket.gethostname()}_{os.getpid()}")
    """Who holds the lease."""
    workers: int = Field(default=8, ge=1, le=256)
    """Objects that are reconciled at once."""
    calls_per_object: int = Field(default=16, ge=1, le=256)
    """Requests for one object at once."""
    actions_per_turn: int = Field(default=50, ge=1, le=10_000)
    """Then others have their turn."""
    resync_s: float = Field(default=600.0, gt=0)
    """Every object is reconciled again after about this time. For a running job its Secret and policy are asked for,
    else there is no request if all is well."""
    report_interval_s: float = Field(default=5.0, gt=0)
    """How often what jobs say on the bus may change their status."""
    deletion_deadline_s: float = Field(default=120.0, ge=0)
    """Beyond the pods' grace periods, how long a deleted job may wait for its pods and for the bus."""

    @model_validator(mode="after")
    def _one_store(self) -> OperatorSettings:
        far, home = self.remote_object_store, self.object_store
        if far is not None and (far.bucket, far.prefix.strip("/")) != (home.bucket, home.prefix.strip("/")):
            raise ValueError(
                "remote_object_store must have the bucket and prefix of object_store: pods of a job share what is there"
            )
        return self

    @model_validator(mode="after")
    def _renewed_in_time(self) -> OperatorSettings:
        sts = None if self.storage_roles is None else self.storage_roles.sts
        if sts is not None and sts.duration_s < 3 * self.resync_s:
            raise ValueError(
                "storage_roles.sts.duration_s must be three times resync_s at least: jobs are reconciled"
                " too seldom for it"
            )
        return self

    @model_validator(mode="after")
    def _one_user(self) -> OperatorSettings:
        if (self.nats_accounts is None) == (self.shared_nats_account is None):
            raise ValueError(
                "give nats_accounts, by which jobs are kept apart on NATS, or, where all pods of all jobs may do"
                " everything to one another's data, shared_nats_account=all-pods-trust-one-another"
            )
        if self.nats_accounts is None:
            return self
        for name, nats in (("nats", self.nats), ("remote_nats", self.remote_nats)):
            if nats is not None and nats.names_a_user:
                raise ValueError(
                    f"{name}: user, password and credentials_file are not for use with nats_accounts, which makes the"
                    " users"
                )
        if self.nats_accounts.renewal_s < self.resync_s:
            raise ValueError(
                "nats_accounts.renewal_s must not be below resync_s: jobs are reconciled too seldom for it"
            )
        return self

    @field_validator("namespaces", "image_pull_secrets", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return _listed(value)


def _listed(value: object) -> object:
    """A text with commas as the list that it is; the rest as it is."""
    return tuple(item.strip() for item in value.split(",") if item.strip()) if isinstance(value, str) else value
