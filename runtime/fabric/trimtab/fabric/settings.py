"""Where a pod finds the world: one typed object read from the environment and from mounted files, so that no other
module looks at os.environ and a missing or wrong value is reported by name before anything is dialled.

A setting has one name everywhere: nats.servers in the settings file (YAML or JSON, named by TRIMTAB_SETTINGS_FILE) is
TRIMTAB_NATS__SERVERS in the environment and the file nats__servers in the secrets folder (TRIMTAB_SECRETS_DIR, a
mounted Kubernetes Secret). The environment wins over the secrets folder, that over the settings file, that over the
defaults.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

PREFIX = "TRIMTAB_"
SETTINGS_FILE = "TRIMTAB_SETTINGS_FILE"
SECRETS_DIR = "TRIMTAB_SECRETS_DIR"
_NESTING = "__"
# Kubernetes tells a pod of every Service in its namespace in variables like these; one called trimtab-nats is not ours.
_SERVICE_LINK = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$"
    # and the operator of the ports it chose.
    r"|^TRIMTAB_(PORT|HOST)_"
)
_MAX_FILE_BYTES = 1 << 20


class SettingsError(Exception):
    """Everything that is wrong with the settings at once, each by its environment name and with its fix."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(
            "the settings are incomplete or wrong:\n" + "\n".join(f"  - {problem}" for problem in problems)
        )
        self.problems = tuple(problems)


class _Section(BaseModel):
    # Inputs stay out of error texts: one of them may be a password in the wrong place.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _listed(value: object) -> object:
    """A list as the environment says it: with commas."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    return value


class NatsSettings(_Section):
    """How to reach the job's NATS server or cluster."""

    servers: tuple[str, ...] = Field(min_length=1)
    user: str | None = None
    password: SecretStr | None = None
    credentials_file: Path | None = None
    tls_ca_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    inbox_prefix: str = Field(default="_INBOX", pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")
    """Where answers are sent. A user that may read _INBOX.> reads all answers, so a user of lesser rights has a prefix
    of its own.
    """
    makes_streams: bool = True
    """Whether this user may make streams, buckets and their consumers. If not, the operator does, and they are waited
    for."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    request_timeout_s: float = Field(default=10.0, gt=0)

    @property
    def names_a_user(self) -> bool:
        return self.user is not None or self.password is not None or self.credentials_file is not None

    @field_validator("servers", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """nats://a:4222,nats://b:4222, as the environment says it."""
        return _listed(value)


class ObjectStoreSettings(_Section):
    """How to reach the S3-compatible store that holds weights and checkpoints."""

    bucket: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str = "us-east-1"
    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None
    credentials_file: Path | None = None
    """Instead of both: JSON with access_key_id, secret_access_key and, where they are for a while only, session_token.
    It is read again when it has changed."""
    ca_file: Path | None = None
    unsynced_folder: Path | None = None
    """Where a store on this machine keeps its files, which answers before they are on the disk."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    read_timeout_s: float = Field(default=30.0, gt=0)


class WeightSettings(_Section):
    """Who may publish weights: trainers have the seed of an Ed25519 key, pools trust its public half, both in base64.

    Several public keys are trusted during a rotation.
    """

    signing_seed: SecretStr | None = None
    public_keys: tuple[str, ...] = ()

    @field_validator("public_keys", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return _listed(value)


class LedgerSettings(_Section):
    """How the dataflow knows its own records: a secret that no other role of the job has."""

    key: SecretStr | None = Field(default=None, min_length=32)


class ResumeSettings(_Section):
    """Where a new job's trainers begin instead of at their models: found once for the job, by who runs it."""

    place: str
    """`s3://bucket/prefix`, opened with the job's own credentials, or a folder; below it each policy has a folder of
    its name with its checkpoints."""
    job: str | None = None
    """namespace/name of the job that has written them; absent, whichever has the key."""
    public_key: str
    """By which what it has signed is known."""
    steps: tuple[Annotated[str, Field(pattern=r"^[^=,/]+=[0-9]{1,18}(/[0-9]{1,18})*$")], ...] = ()
    """As policy=step or policy=step/step, where that was decided already: of those the first whose checkpoint is
    kept."""

    @field_validator("steps", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return _listed(value)

    def steps_of(self, policy: str) -> tuple[int, ...]:
        """The one to begin at first; none where that was not decided."""
        said = dict(pair.split("=", 1) for pair in self.steps)
        return tuple(int(step) for step in said[policy].split("/")) if policy in said else ()


class EngineSettings(_Section):
    """What an endpoint that is not ours asks for."""

    api_key: SecretStr | None = None


class PodSettings(_Section):
    """Who this pod is: what it says of itself in heartbeats, logs and metrics."""

    namespace: str = Field(min_length=1)
    job: str = Field(min_length=1)
    role: Literal["dataflow", "rollout", "trainer", "tracking"]
    name: str = Field(min_length=1)
    pool: str | None = None
    policy: str | None = None


class LogSettings(_Section):
    """How much is logged, and for whom: JSON lines for machines, a console for people, auto asks the terminal."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


class ProbeSettings(_Section):
    """Where /metrics, /healthz and /readyz are served, and for how long the main loop may be silent."""

    host: str = "0.0.0.0"  # noqa: S104 (the kubelet and Prometheus come from outside the pod)
    port: int = Field(default=9464, ge=0, le=65535)
    max_silence_s: float = Field(default=60.0, gt=0)


class Settings(_Section):
    """Everything a pod has to be told."""

    pod: PodSettings
    nats: NatsSettings
    object_store: ObjectStoreSettings
    weights: WeightSettings = WeightSettings()
    ledger: LedgerSettings = LedgerSettings()
    resume: ResumeSettings | None = None
    logs: LogSettings = LogSettings()
    probes: ProbeSettings = ProbeSettings()


S = TypeVar("S", bound=BaseModel)


def load_settings(environ: Mapping[str, str], kind: type[S]) -> S:
    """A pod's settings: load_settings(os.environ, Settings). Raises one SettingsError that lists all problems."""
    problems: list[str] = []
    origins: dict[tuple[str, ...], str] = {}
    known = _paths(kind)
    values = _read_file(environ, problems)
    secrets = _read_secrets(environ, known, problems)
    for path, text in secrets.items():
        _put(values, path, text)
        origins[path] = f"file {_NESTING.join(path)} in {SECRETS_DIR}"
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in (SETTINGS_FILE, SECRETS_DIR):
            path = tuple(name.removeprefix(PREFIX).lower().split(_NESTING))
            if path in known or not _SERVICE_LINK.search(name):
                _put(values, path, environ[name])
                origins[path] = "environment"
    try:
        settings = kind.model_validate(values)
    except ValidationError as invalid:
        problems.extend(
            _explained(error["type"], error["loc"], error["msg"], known, origins)
            for error in invalid.errors(include_url=False, include_context=False, include_input=False)
        )
    if problems:
        hidden = [text for path, text in secrets.items() if text]
        hidden += [
            environ[_variable(path)] for path, secret in known.items() if secret and environ.get(_variable(path))
        ]
        raise SettingsError([_without(hidden, problem) for problem in problems])
    return settings


def environment_for(settings: BaseModel, *, secrets_dir: Path | None = None) -> dict[str, str]:
    """The environment that makes a child read these settings. With a folder, secrets are left to write_secrets."""
    environ = {} if secrets_dir is None else {SECRETS_DIR: str(secrets_dir)}
    for path, value in _leaves(settings):
        if not isinstance(value, SecretStr):
            environ[_variable(path)] = _as_text(value)
        elif secrets_dir is None:
            environ[_variable(path)] = value.get_secret_value()
    return environ


def write_secrets(settings: BaseModel, folder: Path) -> None:
    """One file per secret, readable by the owner only, as load_settings and Kubernetes have them."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path, value in _leaves(settings):
        if isinstance(value, SecretStr):
            target = folder / _NESTING.join(path)
            target.touch(mode=0o600)
            target.write_text(value.get_secret_value(), encoding="utf-8")


def secret_values(settings: BaseModel) -> tuple[str, ...]:
    """Every secret in the settings, for the log redaction to know."""
    return tuple(value.get_secret_value() for _, value in _leaves(settings) if isinstance(value, SecretStr))


def _read_file(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    name = environ.get(SETTINGS_FILE)
    if not name:
        return {}
    try:
        values = yaml.safe_load(_text_of(Path(name)))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        # The text of a YAML error quotes the file.
        problems.append(f"{SETTINGS_FILE}: {name} cannot be read ({type(error).__name__}); expected a YAML or JSON map")
        return {}
    if values is None:
        return {}
    if not isinstance(values, dict):
        problems.append(f"{SETTINGS_FILE}: {name} holds a {type(values).__name__}; expected a map such as nats: {{…}}")
        return {}
    return values


def _read_secrets(
    environ: Mapping[str, str], known: dict[tuple[str, ...], bool], problems: list[str]
) -> dict[tuple[str, ...], str]:
    name = environ.get(SECRETS_DIR)
    if not name:
        return {}
    secrets: dict[tuple[str, ...], str] = {}
    try:
        # Kubernetes puts the real files behind names that start with two dots.
        for file in sorted(Path(name).iterdir()):
            if file.name.startswith("..") or not file.is_file():
                continue
            path = tuple(file.name.lower().split(_NESTING))
            # The folder may also hold files that settings point to, such as certificates; those have no section.
            if path in known or len(path) > 1:
                secrets[path] = _text_of(file).removesuffix("\n")
    except (OSError, ValueError) as error:
        problems.append(
            f"{SECRETS_DIR}: {name} cannot be read ({type(error).__name__}); expected a folder of text files"
        )
    return secrets


def _text_of(file: Path) -> str:
    with file.open("rb") as stream:
        data = stream.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"larger than {_MAX_FILE_BYTES} bytes")
    return data.decode("utf-8")


def _put(values: dict[str, Any], path: tuple[str, ...], text: str) -> None:
    """Set a nested value. Where the file has a plain value in place of a section it stays, and is refused as such."""
    for key in path[:-1]:
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            return
        values = inner
    values[path[-1]] = text


def _paths(kind: type[BaseModel], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], bool]:
    """The path of every setting, and whether it is a secret."""
    paths: dict[tuple[str, ...], bool] = {}
    for name, field in kind.model_fields.items():
        annotation = field.annotation
        # A section, or one that may be absent.
        section = next((kind for kind in (annotation, *get_args(annotation)) if _is_section(kind)), None)
        if section is not None:
            paths |= _paths(section, (*above, name))
        else:
            paths[(*above, name)] = SecretStr in (annotation, *get_args(annotation))
    return paths


def _is_section(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _leaves(settings: BaseModel, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, (*above, name))
        elif isinstance(value, dict) and all(isinstance(secret, SecretStr) for secret in value.values()):
            yield from (((*above, name, key), secret) for key, secret in value.items())
        elif value is not None:
            yield (*above, name), value


def _explained(
    problem: str,
    location: tuple[int | str, ...],
    message: str,
    known: dict[tuple[str, ...], bool],
    origins: dict[tuple[str, ...], str],
) -> str:
    path = tuple(str(key) for key in location if not isinstance(key, int))
    name, dotted = _variable(path), ".".join(path)
    if problem == "missing":
        below = [_variable(other) for other in known if other[: len(path)] == path and other != path]
        if below:
            return (
                f"{name}{_NESTING}…: missing; set {below[0]} and its like, or the section {dotted} in the settings file"
            )
        return f"{name}: missing; set it, or {dotted} in the settings file"
    origin = origins.get(path, "settings file")
    if problem == "extra_forbidden":
        names = {".".join(other): _variable(other) for other in known}
        close = difflib.get_close_matches(dotted.lower(), names, n=1, cutoff=0.7)
        hint = f"did you mean {names[close[0]]}?" if close else "remove it"
        return f"{name}: not a setting (from {origin}); {hint}"
    return f"{name}: {message[:1].lower()}{message[1:]} (from {origin}); correct it"


def _variable(path: tuple[str, ...]) -> str:
    return PREFIX + _NESTING.join(path).upper()


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return json.dumps(value) if isinstance(value, bool | int | float) else str(value)


def _without(secrets: list[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
