"""The chart before real servers: the API server takes it, Pod Security restricted lets its pods in, Helm installs,
upgrades and uninstalls it, and NATS and object storage run as configured and let in whom they should.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import helm_python
import pytest
from botocore.config import Config as BotoConfig
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import SecretStr

from tests.support.chart.mounted import volume_named, write_projected
from tests.support.chart.rendering import (
    CHART,
    NAMESPACE,
    SETS,
    Object,
    name_of,
    named,
    objects,
    of_kind,
    pod_templates,
    values_of,
)
from tests.support.polling import eventually
from trimtab.embedded.binaries import find_binary
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.ports import LOOPBACK, free_ports, is_free
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.credentials import MintedCredentials
from trimtab.fabric.bus.errors import BusUnauthenticated
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.keys import KeyKind, KeyPair
from trimtab.fabric.bus.users.limits import AccountLimits
from trimtab.fabric.bus.users.mint import AccountMint, MintedUser
from trimtab.fabric.bus.users.registry import register
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import StoreUnauthorized
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.kube.access import load_access
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Forbidden
from trimtab.kube.resources import SECRETS
from trimtab.operator.nats_accounts import SEED_KEY, key_source, open_mint
from trimtab.operator.own_secrets import SecretUnusable, new_secret
from trimtab.operator.pods.storage_policy import JobPlace
from trimtab.operator.settings import NatsAccountsSettings, OwnSecret, StorageRoleSettings, StsSettings
from trimtab.operator.storage_mint import StorageMint

QUICK = ("evaluation", "minted", "remote", "replicated")
"""Sets of values that differ most from one another; all are rendered and compared in both tiers."""
_PROMETHEUS = "monitoring.coreos.com/v1"
_RELEASE = "trimtab"


@pytest.fixture(scope="module")
def restricted(control_plane: ControlPlane) -> str:
    """A namespace that lets in nothing but what Pod Security calls restricted."""
    name = f"chart-{uuid.uuid4().hex[:12]}"
    level = "pod-security.kubernetes.io/enforce"
    labels = {level: "restricted", f"{level}-version": "latest"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(namespace))
    return name


@pytest.fixture(scope="module")
def teams(control_plane: ControlPlane) -> None:
    """Those that the value sets name."""
    for name in ("team-a", "team-b", "research"):
        control_plane.kubectl("create", "namespace", name)


def _text(entries: list[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": entries})


def _pods(entries: list[Object], namespace: str) -> list[Object]:
    """One pod of each workload, as its controller would make it."""
    pods = []
    for workload, template in pod_templates(entries):
        pod = copy.deepcopy({"apiVersion": "v1", "kind": "Pod", **template})
        pod["metadata"] |= {"name": workload, "namespace": namespace}
        if workload != "trimtab-operator":
            pod["spec"]["volumes"].append({"name": "data", "emptyDir": {}})  # which the StatefulSet makes of its claim
        pods.append(pod)
    return pods


@pytest.mark.usefixtures("teams")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SETS]
)
def test_accepted_by_the_api_server_as_it_is(name: str, control_plane: ControlPlane, restricted: str) -> None:
    values = json.loads(json.dumps(values_of(name)).replace(NAMESPACE, restricted))
    entries = objects(values, namespace=restricted)
    # The definitions are large and the same in every set; Prometheus' own kinds are not known here.
    known = [
        entry
        for entry in entries
        if entry["apiVersion"] != _PROMETHEUS and (name == "evaluation" or entry["kind"] != "CustomResourceDefinition")
    ]
    applied = control_plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=_text(known)
    )
    assert len(applied.stdout.splitlines()) == len(known)
    # Pod Security warns of workloads and refuses pods.
    assert "Warning" not in applied.stderr
    pods = _pods(entries, restricted)
    made = control_plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=_text(pods))
    assert len(made.stdout.splitlines()) == len(pods) > 0


def test_restricted_means_it(control_plane: ControlPlane, restricted: str) -> None:
    (pod,) = [pod for pod in _pods(objects({}), restricted) if name_of(pod) == "trimtab-operator"]
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    refused = control_plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod), check=False)
    assert "violates PodSecurity" in refused.stderr


def _identities(control_plane: ControlPlane, namespace: str) -> dict[str, str]:
    """uid and generation of everything of the release in the namespace."""
    kinds = "deploy,statefulset,service,secret,configmap,serviceaccount,role,rolebinding,networkpolicy,pdb,pvc"
    listed = json.loads(control_plane.kubectl("get", kinds, "-n", namespace, "-o", "json").stdout)["items"]
    return {
        f"{entry['kind']}/{name_of(entry)}": f"{entry['metadata']['uid']} {entry['metadata'].get('generation')}"
        for entry in listed
        if not entry.get("type", "").startswith("helm.sh/")
    }


def _secrets(control_plane: ControlPlane, namespace: str) -> dict[str, Any]:
    names = ("trimtab-nats", "trimtab-object-store")
    found = (control_plane.kubectl("get", "secret", name, "-n", namespace, "-o", "json").stdout for name in names)
    return {name: json.loads(text)["data"] for name, text in zip(names, found, strict=True)}


@pytest.mark.slow
def test_install_upgrade_uninstall(control_plane: ControlPlane, namespace: str) -> None:
    # The session's other tests have put the definitions there by hand; the release only has them after it adopted them.
    adopt = {"meta.helm.sh/release-name": _RELEASE, "meta.helm.sh/release-namespace": namespace}
    crds = [f"crd/{name_of(entry)}" for entry in of_kind(objects({}), "CustomResourceDefinition")]
    control_plane.kubectl("annotate", "--overwrite", *crds, *(f"{key}={value}" for key, value in adopt.items()))
    control_plane.kubectl("label", "--overwrite", *crds, "app.kubernetes.io/managed-by=Helm")
    control_plane.kubectl("create", "configmap", "somebody-elses", "-n", namespace)
    before = _identities(control_plane, namespace)
    with helm_python.Config(kubeconfig_path=control_plane.kubeconfig(), namespace=namespace) as helm:
        helm.install(CHART, _RELEASE, {}, timeout=600)
        installed, secrets = _identities(control_plane, namespace), _secrets(control_plane, namespace)
        helm.upgrade(CHART, _RELEASE, {}, timeout=600)
        # No workload has another generation, so none is restarted; passwords are the first ones.
        assert _identities(control_plane, namespace) == installed
        assert _secrets(control_plane, namespace) == secrets
        helm.upgrade(CHART, _RELEASE, {"operator": {"workers": 4}}, timeout=600)
        changed = _identities(control_plane, namespace)
        assert {name for name in installed if changed[name] != installed[name]} == {"Deployment/trimtab-operator"}
        helm.uninstall(_RELEASE, timeout=600)
    assert _identities(control_plane, namespace) == before
    control_plane.kubectl("get", *crds)  # which fails when one is missing
    cluster_wide = control_plane.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name").stdout
    assert namespace not in cluster_wide


@dataclass(frozen=True)
class _EvaluationNats:
    port: int
    folder: Path
    """What its pod would see."""
    mint: AccountMint
    ended: Callable[[], int | None]


@pytest.fixture
def evaluation_nats(tmp_path: Path) -> Iterator[_EvaluationNats]:
    """nats-server with the chart's configuration and the Secret that the operator makes for it, on a free port."""
    entries = objects({})
    place = OwnSecret(name="trimtab-nats-accounts", namespace=NAMESPACE)
    made = new_secret(key_source(NatsAccountsSettings(secret=place), clock=time.time), place)
    seed = base64.b64decode(made["data"][SEED_KEY]).decode()
    pod = named(entries, "StatefulSet", "trimtab-nats")["spec"]["template"]
    folder = tmp_path / "etc"
    write_projected(volume_named(pod, "configuration"), [*entries, made], folder)
    # The server is shown whom to trust, and not the seed that makes users.
    assert not [file for file in folder.iterdir() if seed in file.read_text()]
    client, monitor = free_ports(2)
    file = folder / "nats.conf"
    here = {
        "/etc/nats/": f"{folder}/",
        "store_dir: /data": f"store_dir: {tmp_path}/data",
        "dir: /data/accounts": f"dir: {tmp_path}/data/accounts",
        "0.0.0.0:4222": f"{LOOPBACK}:{client}",
        "0.0.0.0:8222": f"{LOOPBACK}:{monitor}",
    }
    for there, value in here.items():
        assert there in file.read_text()
        file.write_text(file.read_text().replace(there, value))
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["nats-server", "--config", "/etc/nats/nats.conf"]
    server = subprocess.Popen([find_binary("nats-server"), "--config", str(file)], stderr=subprocess.DEVNULL)
    yield _EvaluationNats(
        client, folder, AccountMint(seed, limits=AccountLimits(storage_bytes=1 << 30), clock=time.time), server.poll
    )
    server.terminate()
    server.wait(timeout=300)


async def test_evaluation_nats_keeps_streams_of_minted_users(
    evaluation_nats: _EvaluationNats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = "trimtab-nats.trimtab-system.svc"
    _resolve_to_loopback(monkeypatch, host)
    # As a pod of a job does: by the Service's name, trusting the authority in the Secret only.
    authority = evaluation_nats.folder / "ca.crt"
    secret = named(objects({}), "Secret", "trimtab-nats")["data"]
    authority.write_bytes(base64.b64decode(secret["ca.crt"]))
    address = NatsSettings(servers=(f"tls://{host}:{evaluation_nats.port}",), tls_ca_file=authority)
    await eventually(lambda: not is_free(evaluation_nats.port), timeout_s=30, ended=evaluation_nats.ended)

    async def dialled(user: MintedUser) -> Bus:
        settings = address.model_copy(update={"inbox_prefix": user.inbox_prefix})
        return await Bus.connect(settings, name=user.name, credentials=MintedCredentials(lambda: user.credentials))

    with pytest.raises(BusUnauthenticated):
        await Bus.connect(address, name="nobody")
    another = AccountMint(KeyPair.generate(KeyKind.OPERATOR).reveal_seed(), clock=time.time)
    with pytest.raises(BusUnauthenticated):
        await dialled(another.registrar())
    topology = JobTopology("team", "solver")
    async with await dialled(evaluation_nats.mint.registrar()) as registrar:
        for token in evaluation_nats.mint.job_accounts(topology, job_uid="uid"):
            await register(registrar, token, deadline_s=60.0)
    async with await dialled(evaluation_nats.mint.keeper(job_uid="uid")) as operator:
        await declare_job(operator, topology, deadline_s=60.0)
    async with await dialled(evaluation_nats.mint.job_user("rollout", topology, job_uid="uid")) as rollout:
        stored = await publish(
            rollout, topology.trajectory_subject("solver"), b"x" * (7 << 20), message_id="1", deadline_s=60.0
        )
        assert stored.sequence == 1
    assert (tmp_path / "data/jetstream").is_dir()
    assert len(list((tmp_path / "data/accounts").rglob("*.jwt"))) == 1 + len(
        evaluation_nats.mint.account_keys(job_uid="uid")
    )


async def test_the_operator_makes_the_account_once_under_the_charts_rights(control_plane: ControlPlane) -> None:
    home = f"home-{uuid.uuid4().hex[:12]}"
    control_plane.kubectl("create", "namespace", home)
    values = values_of("namespaced")
    rights = [
        entry
        for entry in of_kind(objects(values, namespace=home), "Role", "RoleBinding")
        if entry["metadata"]["namespace"] == home
    ]
    control_plane.kubectl("apply", "-f", "-", stdin=_text(rights))
    user = f"system:serviceaccount:{home}:trimtab-operator"
    access = load_access(control_plane.kubeconfig(user=user, groups=()))
    account = NatsAccountsSettings(secret=OwnSecret(name="trimtab-nats-accounts", namespace=home))
    async with KubeClient(access, user_agent="test") as client:
        # Two operators start at once, and one again later.
        mints = list(await asyncio.gather(*(open_mint(account, client, clock=lambda: 1e9) for _ in range(2))))
        mints.append(await open_mint(account, client, clock=lambda: 1e9))
        made = {mint.registrar().credentials for mint in mints if mint is not None}
        assert len(made) == 1
        with pytest.raises(Forbidden):
            await client.get(SECRETS, "another", namespace=home)
        elsewhere = NatsAccountsSettings(secret=OwnSecret(name="trimtab-nats-accounts", namespace="default"))
        with pytest.raises(SecretUnusable, match="trimtab-nats-accounts in namespace default"):
            await open_mint(elsewhere, client, clock=lambda: 1e9)


@dataclass(frozen=True)
class _EvaluationStore:
    address: str
    authority: Path
    process: subprocess.Popen[bytes]
    log: Path

    def check_runs(self) -> None:
        assert self.process.poll() is None, self.log.read_text()


@pytest.fixture
def evaluation_store(tmp_path: Path) -> Iterator[_EvaluationStore]:
    """SeaweedFS by the chart's command and variables, on free ports."""
    entries = objects({})
    (container,) = named(entries, "StatefulSet", "trimtab-object-store")["spec"]["template"]["spec"]["containers"]
    secret = named(entries, "Secret", "trimtab-object-store")["data"]
    for name in ("ca.crt", "tls.crt", "tls.key", "iam.json"):
        (tmp_path / name).write_bytes(base64.b64decode(secret[name]))
    (tmp_path / "data").mkdir()
    environment = {
        entry["name"]: entry.get("value")
        or base64.b64decode(secret[entry["valueFrom"]["secretKeyRef"]["key"]]).decode()
        for entry in container["env"]
    }
    parts = ("s3", "master", "volume", "filer")
    ports = dict(zip([*parts, *(f"{part}.grpc" for part in parts)], free_ports(2 * len(parts)), strict=True))
    command = [
        argument.replace("/etc/seaweedfs/", f"{tmp_path}/")
        .replace("=/data", f"={tmp_path}/data")
        .replace("=0.0.0.0", f"={LOOPBACK}")
        for argument in container["command"][1:]
        if not argument.startswith("-s3.port=")
    ]
    command += [
        f"-{part}.port{'.grpc' if grpc else ''}={port}"
        for name, port in ports.items()
        for part, _, grpc in [name.partition(".")]
    ]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [find_binary("weed"), *command], env=environment | {"HOME": str(tmp_path)}, stdout=log, stderr=log
        )
    yield _EvaluationStore(f"https://localhost:{ports['s3']}", tmp_path / "ca.crt", server, tmp_path / "log")
    server.terminate()
    server.wait(timeout=300)


async def test_evaluation_store_has_its_bucket_for_who_has_the_secret(
    evaluation_store: _EvaluationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _resolve_to_loopback(monkeypatch, "trimtab-object-store.trimtab-system.svc")
    secret = named(objects({}), "Secret", "trimtab-object-store")["data"]
    identity, key = (base64.b64decode(secret[name]).decode() for name in ("accessKeyId", "secretAccessKey"))

    address = evaluation_store.address.replace("localhost", "trimtab-object-store.trimtab-system.svc")

    def client(secret_access_key: str) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=address,
            region_name="us-east-1",
            aws_access_key_id=identity,
            aws_secret_access_key=secret_access_key,
            verify=str(evaluation_store.authority),
            config=BotoConfig(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1}),
        )

    def stored() -> bool:
        evaluation_store.check_runs()
        try:
            client(key).put_object(Bucket="trimtab", Key="weights", Body=b"1")
        except (BotoCoreError, ClientError):
            return False
        return True

    await eventually(stored, timeout_s=60, interval_s=0.5)
    with pytest.raises(ClientError, match="SignatureDoesNotMatch|AccessDenied"):
        client("guessed").get_object(Bucket="trimtab", Key="weights")
    # And for roles of jobs, as the operator's settings name the role that it has.
    settings = StorageRoleSettings(sts=StsSettings(role_arn="arn:aws:iam::role/trimtab-jobs"))
    own = ObjectStoreSettings(
        bucket="trimtab",
        endpoint_url=address,
        access_key_id=SecretStr(identity),
        secret_access_key=SecretStr(key),
        ca_file=evaluation_store.authority,
    )
    place = JobPlace(bucket="trimtab", prefix="team/job-1", policies=("solver",))
    made = await StorageMint(settings, own, clock=time.time).keys(place, roles=("trainer",), session="job-1")
    file = evaluation_store.authority.with_name("credentials")
    file.write_text(made["trainer"].as_file())
    without = own.model_copy(
        update={"access_key_id": None, "secret_access_key": None, "credentials_file": file, "prefix": "team"}
    )
    async with ObjectStore(without) as store:
        await store.put("job-1/checkpoints/x", b"1")
        with pytest.raises(StoreUnauthorized):
            await store.put("job-2/checkpoints/x", b"1")


def _resolve_to_loopback(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """What the cluster's DNS would do for the Service."""
    resolve = socket.getaddrinfo

    def resolved(name: Any, *args: Any, **options: Any) -> Any:
        return resolve(LOOPBACK if name == host else name, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
