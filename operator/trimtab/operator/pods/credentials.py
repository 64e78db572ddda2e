"""What the pods of a job dial with: settings from the operator's own environment, secrets in one Secret per job.

The seed that weights and checkpoints are signed with is made once for the job and kept; only trainers are shown it, and
only the dataflow the key of its ledger. Where users of
NATS are minted each role has its own, and is shown that one only. Files that the settings point to, such as
certificates, travel in the Secret, because the pods have another file system than ours.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import structlog
from pydantic import BaseModel, SecretStr

from trimtab.api import labels
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.mint import AccountMint, MintedUser
from trimtab.fabric.objects.credentials import StoreCredentials
from trimtab.fabric.settings import (
    LedgerSettings,
    LogSettings,
    NatsSettings,
    ObjectStoreSettings,
    ProbeSettings,
    ResumeSettings,
    WeightSettings,
    environment_for,
)
from trimtab.fabric.signing import Signer
from trimtab.kube.resources import Object
from trimtab.operator.pods.job_keys import JobKeys
from trimtab.operator.reconcile.ownership import owned_by
from trimtab.operator.stage_names import stage_names

_log = structlog.get_logger(__name__)
SECRETS_FOLDER = "/trimtab/secrets"
SEED_KEY = "weights__signing_seed"
LEDGER_KEY = "ledger__key"
_RESUME_KEYS = {name: f"resume__{name}" for name in ("place", "job", "public_key")}
_STEPS_KEY = "resume__steps"
"""Beside those, where the manifest names the best step and not one by its number."""
_SHOWN_ONLY_TO = {SEED_KEY: "trainer", LEDGER_KEY: "dataflow"} | dict.fromkeys(
    (*_RESUME_KEYS.values(), _STEPS_KEY), "trainer"
)
NATS_CREDENTIALS = "nats-credentials"
STORE_CREDENTIALS = "object-store-credentials"
"""The files, in every pod; the Secret has one of each for each role."""
_BY_ROLE = (NATS_CREDENTIALS, STORE_CREDENTIALS)
_UID_CHARACTERS = 8
S = TypeVar("S", bound=BaseModel)


class _Surroundings(BaseModel):
    """The part of a pod's settings that is the same for all pods of a job."""

    nats: NatsSettings
    object_store: ObjectStoreSettings
    weights: WeightSettings
    ledger: LedgerSettings
    logs: LogSettings
    probes: ProbeSettings


@dataclass(frozen=True, kw_only=True)
class JobCredentials:
    environment: Mapping[str, str]
    """For every pod of the job; nothing in it is secret."""
    own_environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By role, what pods of one role have beside or instead of that."""
    secret: Object
    """As it should be stored."""
    window: object = None
    """Of the mints, when what is in it was made."""
    files: str = ""
    """What `files_digest` said of the files in it."""

    def is_current(self, *sections: BaseModel, window: object, roles: Collection[str]) -> bool:
        """Whether it has all roles, and the settings' files are those in it. One that cannot be read just now counts as
        unchanged: what the pods have of it serves them still."""
        if self.own_environments and not {*roles} <= self.own_environments.keys():
            return False
        try:
            files = files_digest(*sections)
        except OSError as error:
            _log.warning("credentials_not_renewed", error=str(error))
            files = self.files
        return (self.window, self.files) == (window, files)

    @property
    def secret_name(self) -> str:
        return str(self.secret["metadata"]["name"])

    def environment_of(self, role: str) -> Mapping[str, str]:
        return {**self.environment, **self.own_environments.get(role, {})}

    def files_of(self, role: str) -> Mapping[str, str]:
        """What a pod of the role is shown of the Secret: keys by the name of the file that each is in."""
        own = {f"{file}-{other}": (file, other) for file in _BY_ROLE for other in self.own_environments}
        shown = {}
        for key in sorted(self.secret["data"]):
            if key in own:
                file, other = own[key]
                if other == role:
                    shown[file] = key
            elif _SHOWN_ONLY_TO.get(key, role) == role:
                shown[key] = key
        return shown


def files_digest(*sections: BaseModel) -> str:
    """Of the files that the settings name, as they are now: an authority may have been renewed. Raises OSError."""
    digest = hashlib.sha256()
    for section in sections:
        for _, value in section:
            if isinstance(value, Path):
                digest.update(hashlib.sha256(value.read_bytes()).digest())
    return digest.hexdigest()


def credentials_key(role: str) -> str:
    return f"{NATS_CREDENTIALS}-{role}"


def secret_name(job: str) -> str:
    return f"{job}-credentials"


def kept_keys(secret: Object | None) -> tuple[str | None, str | None]:
    """The signing seed and the ledger's key in the job's Secret, where they are there already."""
    return _kept(secret, SEED_KEY), _kept(secret, LEDGER_KEY)


def kept_origin(secret: Object | None) -> ResumeSettings | None:
    """Where the job's trainers begin, where that was looked up already. What people have made of it, and cannot be
    read, was not."""
    try:
        found = {name: text for name, key in _RESUME_KEYS.items() if (text := _kept(secret, key)) is not None}
        steps = _kept(secret, _STEPS_KEY)
        origin = ResumeSettings.model_validate(found | ({} if steps is None else {"steps": steps}))
    except ValueError:
        return None
    return origin if len(found) == len(_RESUME_KEYS) else None


def _kept(secret: Object | None, key: str) -> str | None:
    encoded = ((secret or {}).get("data") or {}).get(key)
    return None if encoded is None else base64.b64decode(encoded).decode()


def job_credentials(
    job: Object,
    *,
    nats: NatsSettings,
    object_store: ObjectStoreSettings,
    logs: LogSettings,
    keys: JobKeys,
    origin: ResumeSettings | None = None,
    users: Mapping[str, MintedUser] | None = None,
    storage: Mapping[str, StoreCredentials] | None = None,
    window: object = None,
) -> JobCredentials:
    """`job` is the RLJob, `origin` where it begins in place of its models, `users` are those of NATS and `storage`
    those of the store, by role. Files that the settings name are read now, and again when `files_digest` has
    changed."""
    digest = files_digest(nats, object_store)
    files: dict[str, bytes] = {}
    prefix = job_prefix(job, object_store)
    if storage:
        # Pods have their role's own and not the operator's.
        none = dict.fromkeys(("access_key_id", "secret_access_key", "credentials_file"))
        object_store = object_store.model_copy(update=none)
    surroundings = _Surroundings(
        nats=_with_files(nats, "nats", files),
        object_store=_with_files(object_store, "object-store", files).model_copy(update={"prefix": prefix}),
        weights=WeightSettings(
            signing_seed=SecretStr(keys.signing_seed), public_keys=(Signer(keys.signing_seed).public_text,)
        ),
        ledger=LedgerSettings(key=SecretStr(keys.ledger_key)),
        logs=logs,
        probes=ProbeSettings(),
    )
    secrets = _secret_texts(surroundings)
    data = {name: text.encode() for name, text in secrets.items()} | files
    if origin is not None:
        data |= {key: str(getattr(origin, name)).encode() for name, key in _RESUME_KEYS.items()}
        data |= {_STEPS_KEY: ",".join(origin.steps).encode()} if origin.steps else {}
    data |= {credentials_key(role): user.credentials.encode() for role, user in (users or {}).items()}
    data |= {f"{STORE_CREDENTIALS}-{role}": keys.as_file().encode() for role, keys in (storage or {}).items()}
    own: dict[str, dict[str, str]] = {role: {} for role in (*(users or {}), *(storage or {}))}
    for role, user in (users or {}).items():
        own[role] |= _dialling_as(user, surroundings.nats)
    for role in storage or {}:
        own[role] |= _storing(surroundings.object_store)
    return JobCredentials(
        environment=environment_for(surroundings, secrets_dir=Path(SECRETS_FOLDER)),
        own_environments=own,
        window=window,
        files=digest,
        secret=_secret_of(job, data),
    )


def keys_secret(job: Object, keys: JobKeys) -> Object:
    """The job's Secret with nothing in it yet but its keys."""
    return _secret_of(job, {SEED_KEY: keys.signing_seed.encode(), LEDGER_KEY: keys.ledger_key.encode()})


def _secret_of(job: Object, data: Mapping[str, bytes]) -> Object:
    metadata = job["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(metadata["name"]),
            "namespace": metadata["namespace"],
            "labels": {labels.JOB: metadata["name"]},
            "ownerReferences": owned_by(job),
        },
        "type": "Opaque",
        "data": {name: base64.b64encode(content).decode() for name, content in data.items()},
    }


def job_prefix(job: Object, object_store: ObjectStoreSettings) -> str:
    """Below which everything of the job lies. With the uid, so that a job of the same name starts from its own model
    and not from its predecessor's weights."""
    metadata = job["metadata"]
    own_place = f"{metadata['namespace']}/{metadata['name']}-{metadata['uid'][:_UID_CHARACTERS]}"
    return f"{object_store.prefix.strip('/')}/{own_place}".lstrip("/")


def minted_users(mint: AccountMint | None, job: Object, *, roles: Sequence[str]) -> dict[str, MintedUser]:
    """By role; none where all pods dial with the operator's own user."""
    if mint is None:
        return {}
    metadata = job["metadata"]
    topology = JobTopology(metadata["namespace"], metadata["name"], stages=stage_names(job))
    return {role: mint.job_user(role, topology, job_uid=metadata["uid"]) for role in roles}


class _Dialling(BaseModel):
    nats: NatsSettings


def _dialling_as(user: MintedUser, nats: NatsSettings) -> Mapping[str, str]:
    own = {
        "credentials_file": Path(SECRETS_FOLDER) / NATS_CREDENTIALS,
        "inbox_prefix": user.inbox_prefix,
        "makes_streams": False,
    }
    return environment_for(_Dialling(nats=nats.model_copy(update=own)), secrets_dir=Path(SECRETS_FOLDER))


class _Storing(BaseModel):
    object_store: ObjectStoreSettings


def _storing(store: ObjectStoreSettings) -> Mapping[str, str]:
    own = store.model_copy(update={"credentials_file": Path(SECRETS_FOLDER) / STORE_CREDENTIALS})
    return environment_for(_Storing(object_store=own), secrets_dir=Path(SECRETS_FOLDER))


def _secret_texts(surroundings: _Surroundings) -> dict[str, str]:
    """By the file name under which load_settings finds them."""
    texts = {}
    for section in type(surroundings).model_fields:
        for name, value in getattr(surroundings, section):
            if isinstance(value, SecretStr):
                texts[f"{section}__{name}"] = value.get_secret_value()
    return texts


def _with_files(section: S, name: str, files: dict[str, bytes]) -> S:
    """The settings with each path replaced by where the pod finds the file's content."""
    moved = {}
    for setting, value in section:
        if isinstance(value, Path):
            key = f"{name}-{setting.removesuffix('_file').replace('_', '-')}"
            files[key] = value.read_bytes()
            moved[setting] = Path(SECRETS_FOLDER) / key
    return section.model_copy(update=moved)
