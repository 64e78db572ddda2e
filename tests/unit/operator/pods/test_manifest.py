"""What pods are told of their job: the manifest as their owner has it, and credentials."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from tests.support.dataflow.jobs import job
from trimtab.api.algorithm import Algorithm
from trimtab.api.job import RLJob
from trimtab.api.model import ObjectMeta
from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer
from trimtab.api.validation import parse
from trimtab.api.workflow import WorkflowSource
from trimtab.fabric.bus.permissions import RIGHTS_OF
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.keys import KeyKind, KeyPair
from trimtab.fabric.bus.users.mint import AccountMint
from trimtab.fabric.settings import LogSettings, NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer
from trimtab.operator.plan.children import pool_of, trainer_of
from trimtab.operator.pods.credentials import LEDGER_KEY, SEED_KEY, job_credentials, kept_keys
from trimtab.operator.pods.job_keys import JobKeys
from trimtab.operator.pods.manifest import JOB_FOLDER, code_for, manifest_config_map, manifest_for
from trimtab.operator.reconcile.refusals import refusal_of

_OWNER = {"kind": "RLJob", "metadata": {"name": "job", "namespace": "here", "uid": "12345678-abcd"}}
ROLES = tuple(RIGHTS_OF)
_SEED = Signer.generate(entropy=lambda count: b"s" * count).reveal_seed()
_KEYS = JobKeys(signing_seed=_SEED, ledger_key="a key of at least 32 characters.")


def _name(desired: RLJob, owner: RLJob | RolloutPool | Trainer) -> str:
    made = manifest_config_map(manifest_for(desired, owner), owner=_OWNER, job="job", role="dataflow")
    return str(made["metadata"]["name"])


def _changed(desired: RLJob, **spec: Any) -> RLJob:
    return desired.model_copy(update={"spec": desired.spec.model_copy(update=spec)})


def test_what_programs_cannot_see_makes_no_new_manifest() -> None:
    desired = job()
    assert _name(desired, desired) == _name(_changed(desired, suspend=True, ttl_seconds_after_finished=3), desired)
    assert _name(desired, desired) != _name(_changed(desired, max_steps=7), desired)
    pool = pool_of(desired, desired.spec.pools[0], None)
    scaled = pool.model_copy(update={"spec": pool.spec.model_copy(update={"replicas": 9})})
    assert _name(desired, pool) == _name(desired, scaled)


def test_code_is_put_into_a_trainer_only_where_the_algorithm_is_the_users_own() -> None:
    source = WorkflowSource.model_validate({"configMap": {"name": "my-code"}})
    desired = job()
    desired = _changed(desired, workflow=desired.spec.workflow.model_copy(update={"source": source}))
    custom = Algorithm.model_validate({"name": "custom", "custom": {"entrypoint": "mine:Mine"}})
    owned = _changed(
        desired, policies=tuple(policy.model_copy(update={"algorithm": custom}) for policy in desired.spec.policies)
    )
    for one in (desired, owned):
        assert code_for(one, one) == "my-code"
        assert code_for(one, pool_of(one, one.spec.pools[0], None)) == "my-code"
    assert code_for(desired, trainer_of(desired, desired.spec.policies[0])) is None
    assert code_for(owned, trainer_of(owned, owned.spec.policies[0])) == "my-code"
    installed = _changed(owned, workflow=owned.spec.workflow.model_copy(update={"source": None}))
    assert code_for(installed, trainer_of(installed, installed.spec.policies[0])) is None


def test_a_pool_made_by_hand_is_in_the_manifest_of_its_pods() -> None:
    desired = job()
    made = RolloutPool.model_validate(
        {"metadata": {"name": "lent"}, "spec": {"jobRef": {"name": "job"}, "replicas": 4, "maxConcurrency": 7}}
    )
    read = parse(manifest_for(desired, made))
    assert isinstance(read, RLJob)
    assert {pool.name: pool.max_concurrency for pool in read.spec.pools} == {"local": 64, "lent": 7}


def test_a_trainer_with_an_algorithm_of_its_own_reads_it() -> None:
    desired = job()
    trainer = trainer_of(desired, desired.spec.policies[0])
    own = Trainer.model_validate(
        {"metadata": {"name": "t"}, "spec": trainer.spec.model_dump() | {"algorithm": {"name": "dapo"}}}
    )
    read = parse(manifest_for(desired, own))
    assert isinstance(read, RLJob)
    assert read.spec.policies[0].algorithm.name == "dapo"


def test_code_from_a_config_map_is_found_beside_the_manifest() -> None:
    desired = job(workflow={"entrypoint": "mine:Flow", "source": {"configMap": {"name": "code"}}})
    assert manifest_for(desired, desired)["spec"]["workflow"]["source"] == {"path": JOB_FOLDER}


def test_relative_paths_are_refused_by_name_and_absolute_ones_are_not() -> None:
    refused = refusal_of(job().spec)
    assert refused is not None
    assert "spec.policies[0].model.uri (model)" in refused
    assert "spec.data.prompts[0].jsonl.uri (prompts.jsonl)" in refused
    desired = job(data={"prompts": [{"name": "train", "jsonl": {"uri": "s3://bucket/p.jsonl"}}]})
    (policy,) = desired.spec.policies
    model = policy.weights.model_copy(update={"uri": "/models/m"})
    assert refusal_of(_changed(desired, policies=(policy.model_copy(update={"model": model}),)).spec) is None


def test_a_model_that_would_move_under_a_job_is_refused() -> None:
    desired = job(
        data={"prompts": [{"name": "train", "jsonl": {"uri": "hf://datasets/team/sums/train.jsonl"}}]},
        policies=[{"name": "solver", "model": {"uri": "hf://team/small", "tokenizer": "hf://team/words@v1"}}],
    )
    refused = refusal_of(desired.spec)
    assert refused is not None
    assert refused.startswith("spec.policies[0].model.uri (hf://team/small): without a revision")
    assert "add @ and a commit or a tag" in refused
    (policy,) = desired.spec.policies
    model = policy.weights.model_copy(update={"uri": "hf://team/small@v1"})
    assert refusal_of(_changed(desired, policies=(policy.model_copy(update={"model": model}),)).spec) is None


def test_secrets_are_in_the_secret_and_nowhere_else(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("-- a certificate --")
    made = job_credentials(
        _OWNER,
        nats=NatsSettings(servers=("nats://n:4222",), user="u", password=SecretStr("hush"), tls_ca_file=authority),
        object_store=ObjectStoreSettings(bucket="b", prefix="/all/", secret_access_key=SecretStr("quiet")),
        logs=LogSettings(),
        keys=_KEYS,
    )
    stored = {key: base64.b64decode(value).decode() for key, value in made.secret["data"].items()}
    assert stored["nats__password"] == "hush"
    assert stored["object_store__secret_access_key"] == "quiet"
    assert stored["nats-tls-ca"] == "-- a certificate --"
    assert stored[SEED_KEY] == _SEED
    assert stored[LEDGER_KEY] == _KEYS.ledger_key
    assert [role for role in ROLES if SEED_KEY in made.files_of(role).values()] == ["trainer"]
    assert [role for role in ROLES if LEDGER_KEY in made.files_of(role).values()] == ["dataflow"]
    assert made.files_of("rollout")["nats__password"] == "nats__password"
    shown = " ".join(made.environment.values())
    assert not any(secret in shown for secret in ("hush", "quiet", _SEED, _KEYS.ledger_key))
    assert made.environment["TRIMTAB_NATS__TLS_CA_FILE"] == "/trimtab/secrets/nats-tls-ca"
    assert made.environment["TRIMTAB_OBJECT_STORE__PREFIX"] == "all/here/job-12345678"
    assert kept_keys(made.secret) == (_SEED, _KEYS.ledger_key)
    assert kept_keys(None) == (None, None)


def test_each_role_is_shown_its_own_user_of_nats_at_the_same_path() -> None:
    mint = AccountMint(KeyPair.generate(KeyKind.OPERATOR).reveal_seed(), clock=lambda: 1e9)
    topology = JobTopology("here", "job")
    users = {role: mint.job_user(role, topology, job_uid="12345678-abcd") for role in ROLES}
    made = job_credentials(
        _OWNER,
        nats=NatsSettings(servers=("nats://n:4222",)),
        object_store=ObjectStoreSettings(bucket="b"),
        logs=LogSettings(),
        keys=_KEYS,
        users=users,
        window=mint.window,
    )
    assert len({user.inbox_prefix for user in users.values()}) == len(ROLES)
    for role in ROLES:
        shown = {file: base64.b64decode(made.secret["data"][key]).decode() for file, key in made.files_of(role).items()}
        assert shown["nats-credentials"] == users[role].credentials
        others = {users[other].credentials for other in ROLES if other != role}
        assert others.isdisjoint(shown.values())
        environment = made.environment_of(role)
        assert environment["TRIMTAB_NATS__CREDENTIALS_FILE"] == "/trimtab/secrets/nats-credentials"
        assert environment["TRIMTAB_NATS__INBOX_PREFIX"] == users[role].inbox_prefix
        assert environment["TRIMTAB_NATS__MAKES_STREAMS"] == "false"


def test_the_owner_of_a_manifest_is_the_object_it_is_for() -> None:
    desired = job().model_copy(update={"metadata": ObjectMeta(name="job", namespace="here", uid="u")})
    made = manifest_config_map(manifest_for(desired, desired), owner=_OWNER, job="job", role="dataflow")
    assert made["immutable"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "12345678-abcd"
