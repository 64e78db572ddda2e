"""What the credentials that the operator makes for each role can do to a real store: every operation on the job's own
weights, leases and checkpoints, on another job's, on what belongs to no job, and on the bucket itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from pydantic import SecretStr

from trimtab.embedded.seaweedfs import JOB_ROLE_ARN, EmbeddedSeaweed
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.credentials import StoreCredentials
from trimtab.fabric.objects.errors import StoreUnauthorized
from trimtab.fabric.objects.selftest import prove_store
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.operator.pods.storage_policy import JobPlace
from trimtab.operator.settings import RoleKeySettings, StorageRoleSettings, StsSettings
from trimtab.operator.storage_mint import StorageMint, StorageRefused

ROLES = ("rollout", "trainer", "dataflow", "tracking")
OWN, OTHER = "all/team/solver-12345678", "all/team/solver-87654321"
ORIGIN = "all/team/before-11111111/checkpoints"
DATASETS, MODELS = "trimtab/datasets", "trimtab/models/small"
PLACES = {
    "weights": f"{OWN}/weights/solver/00000001/obj/x",
    "pointer": f"{OWN}/weights/solver/latest.json",
    "lease": f"{OWN}/weights/solver/lease/pod-0",
    "another policy's lease": f"{OWN}/weights/unknown/lease/pod-0",
    "checkpoint": f"{OWN}/checkpoints/solver/latest.json",
    "a claimed row": f"{OWN}/claims/solver/{'ab' * 32}",
    "archived samples": f"{OWN}/archive/solver/00000001/0000-000.jsonl.zst",
    "what trackers were told": f"{OWN}/tracking/notebook",
    "another job's weights": f"{OTHER}/weights/solver/latest.json",
    "another job's lease": f"{OTHER}/weights/solver/lease/pod-0",
    "another job's checkpoint": f"{OTHER}/checkpoints/solver/latest.json",
    "another job's claimed row": f"{OTHER}/claims/solver/{'ab' * 32}",
    "a job whose name goes on": f"{OWN}0/weights/solver/latest.json",
    "the checkpoint it begins at": f"{ORIGIN}/solver/latest.json",
    "weights of the job that it resumes": "all/team/before-11111111/weights/solver/latest.json",
    "checkpoints whose name goes on": f"{ORIGIN}0/solver/latest.json",
    "a dataset": "datasets/prompts.jsonl",
    "a model": "models/small/config.json",
    "another model": "models/smaller/config.json",
    "no job's": "elsewhere/x",
}
READS, WRITES = {"get", "head"}, {"put", "delete", "delete many", "multipart", "copy to"}
LISTS = ("list", "list old", "list uploads")
OPERATIONS = (*sorted(READS), *sorted(WRITES), "copy from", "part from", *LISTS, "tag", "acl")
WHOLE_JOB = {
    *("weights", "pointer", "lease", "another policy's lease", "checkpoint", "a claimed row", "archived samples"),
    "what trackers were told",
}
ALLOWED: Mapping[str, set[tuple[str, str]]] = {
    "rollout": {(op, place) for op in READS for place in ("weights", "pointer", "lease", "another policy's lease")}
    | {(op, "lease") for op in ("put", "delete", "delete many", "multipart", "copy to")}
    | {(op, "a claimed row") for op in ("put", "multipart", "copy to")},
    "trainer": {(op, place) for op in (*READS, *WRITES, "copy from", "part from", *LISTS) for place in WHOLE_JOB},
    "dataflow": {(op, place) for op in (*READS, "list", "list old") for place in (*WHOLE_JOB, "a dataset")},
    "tracking": {
        (op, "what trackers were told") for op in (*READS, "put", "multipart", "copy to", "copy from", "part from")
    },
}
ALLOWED["trainer"].update((op, "the checkpoint it begins at") for op in (*READS, "copy from", "part from"))
for role, copied in {"rollout": (), "trainer": ("copy from", "part from"), "dataflow": ()}.items():
    ALLOWED[role].update((op, "a model") for op in (*READS, "list", "list old", *copied))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSeaweed]:
    with EmbeddedSeaweed(tmp_path_factory.mktemp("seaweedfs")) as started:
        yield started


def client_of(server: EmbeddedSeaweed, keys: StoreCredentials | None, service: str = "s3") -> Any:
    own = server.settings
    assert own.access_key_id is not None
    assert own.secret_access_key is not None
    mine = keys or StoreCredentials(
        access_key_id=own.access_key_id.get_secret_value(), secret_access_key=own.secret_access_key.get_secret_value()
    )
    return boto3.client(
        service,
        endpoint_url=own.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=mine.access_key_id,
        aws_secret_access_key=mine.secret_access_key,
        aws_session_token=mine.session_token,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )


def mint_of(server: EmbeddedSeaweed, **sts: Any) -> StorageMint:
    settings = StorageRoleSettings(
        sts=StsSettings.model_validate({"role_arn": JOB_ROLE_ARN} | sts), datasets=(DATASETS,)
    )
    return StorageMint(settings, server.settings, clock=lambda: 1e9)


PLACE = JobPlace(
    bucket="trimtab", prefix=OWN, policies=("solver",), datasets=(DATASETS,), models=(MODELS,), origin=ORIGIN
)


@pytest.fixture(scope="module")
def bystander(server: EmbeddedSeaweed) -> Any:
    client = client_of(server, None)
    for key in PLACES.values():
        client.put_object(Bucket="trimtab", Key=key, Body=b"before")
    client.put_object(Bucket="trimtab", Key=f"{OWN}/weights/solver/lease/source", Body=b"source")
    client.put_object(Bucket="trimtab", Key=f"{OWN}/source", Body=b"source")
    client.put_object(Bucket="trimtab", Key=f"{OWN}/tracking/source", Body=b"source")
    return client


@pytest.fixture
async def made(server: EmbeddedSeaweed, bystander: Any) -> Mapping[str, StoreCredentials]:
    return await mint_of(server).keys(PLACE, roles=ROLES, session="12345678-abcd")


@dataclass
class Attempts:
    """Each operation on a key, true when it had its effect."""

    s3: Any
    bystander: Any
    source: str
    """An object that the role may read."""
    target: str | None
    """A key that the role may write, if there is one."""

    def __call__(self, operation: str, key: str) -> bool:
        self.bystander.put_object(Bucket="trimtab", Key=key, Body=b"before")
        before = self._state(key)
        try:
            answer = getattr(self, "_" + operation.replace(" ", "_"))(key)
        except ClientError as error:
            refused = error.response["ResponseMetadata"]["HTTPStatusCode"] == 403
        else:
            return key not in self._there(key) if operation == "delete many" else bool(answer)
        assert refused, (operation, key)
        assert self._state(key) == before, f"{operation} was refused and still had an effect"
        return False

    def _state(self, key: str) -> tuple[str, bytes]:
        answer = self.bystander.get_object(Bucket="trimtab", Key=key)
        return answer["ETag"], answer["Body"].read()

    def _there(self, key: str) -> list[str]:
        return [
            item["Key"] for item in self.bystander.list_objects_v2(Bucket="trimtab", Prefix=key).get("Contents", [])
        ]

    def _get(self, key: str) -> bool:
        return bool(self.s3.get_object(Bucket="trimtab", Key=key)["Body"].read() == b"before")

    def _head(self, key: str) -> bool:
        return bool(self.s3.head_object(Bucket="trimtab", Key=key))

    def _put(self, key: str) -> bool:
        return bool(self.s3.put_object(Bucket="trimtab", Key=key, Body=b"after"))

    def _delete(self, key: str) -> bool:
        return bool(self.s3.delete_object(Bucket="trimtab", Key=key))

    def _delete_many(self, key: str) -> bool:
        return bool(self.s3.delete_objects(Bucket="trimtab", Delete={"Objects": [{"Key": key}]}))

    def _multipart(self, key: str) -> bool:
        begun = self.s3.create_multipart_upload(Bucket="trimtab", Key=key)["UploadId"]
        part = self.s3.upload_part(Bucket="trimtab", Key=key, UploadId=begun, PartNumber=1, Body=b"part")
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        return bool(self.s3.complete_multipart_upload(Bucket="trimtab", Key=key, UploadId=begun, MultipartUpload=parts))

    def _copy_to(self, key: str) -> bool:
        return bool(self.s3.copy_object(Bucket="trimtab", Key=key, CopySource=f"trimtab/{self.source}"))

    def _copy_from(self, key: str) -> bool:
        target = self.target or key
        return bool(self.s3.copy_object(Bucket="trimtab", Key=target, CopySource=f"trimtab/{key}"))

    def _part_from(self, key: str) -> bool:
        target = self.target or key
        begun = self.s3.create_multipart_upload(Bucket="trimtab", Key=target)["UploadId"]
        return bool(
            self.s3.upload_part_copy(
                Bucket="trimtab", Key=target, UploadId=begun, PartNumber=1, CopySource=f"trimtab/{key}"
            )
        )

    def _list(self, key: str) -> bool:
        return bool(self.s3.list_objects_v2(Bucket="trimtab", Prefix=_folder(key)).get("Contents"))

    def _list_old(self, key: str) -> bool:
        return bool(self.s3.list_objects(Bucket="trimtab", Prefix=_folder(key)).get("Contents"))

    def _list_uploads(self, key: str) -> bool:
        return bool(self.s3.list_multipart_uploads(Bucket="trimtab", Prefix=_folder(key)))

    def _tag(self, key: str) -> bool:
        tags = {"TagSet": [{"Key": "a", "Value": "b"}]}
        return bool(self.s3.put_object_tagging(Bucket="trimtab", Key=key, Tagging=tags))

    def _acl(self, key: str) -> bool:
        return bool(self.s3.put_object_acl(Bucket="trimtab", Key=key, ACL="public-read"))


def _folder(key: str) -> str:
    return f"{key.rpartition('/')[0]}/"


@pytest.mark.parametrize("role", ["rollout", *(pytest.param(role, marks=pytest.mark.slow) for role in ROLES[1:])])
async def test_a_role_can_do_what_it_needs_and_nothing_else(
    role: str, server: EmbeddedSeaweed, bystander: Any, made: Mapping[str, StoreCredentials]
) -> None:
    lease, told = f"{OWN}/weights/solver/lease/source", f"{OWN}/tracking/source"
    source = {"rollout": lease, "tracking": told}.get(role, f"{OWN}/source")
    target = {
        "rollout": f"{OWN}/weights/solver/lease/target",
        "trainer": f"{OWN}/target",
        "tracking": f"{OWN}/tracking/target",
    }.get(role)
    attempts = Attempts(client_of(server, made[role]), bystander, source, target)
    worked = {(op, place) for op in OPERATIONS for place, key in PLACES.items() if attempts(op, key)}
    # A pod that may read and write may copy what it reads to where it writes.
    copies = {(op, place) for op in ("copy from", "part from") for _, place in worked & {("get", p) for p in PLACES}}
    allowed = ALLOWED[role] | (copies if role == "rollout" else set())
    assert sorted(worked - allowed) == []
    assert sorted(allowed - worked) == []


BUCKET: Mapping[str, Callable[[Any], object]] = {
    "list all": lambda s3: s3.list_objects_v2(Bucket="trimtab").get("Contents"),
    "list versions": lambda s3: s3.list_object_versions(Bucket="trimtab"),
    "list all uploads": lambda s3: s3.list_multipart_uploads(Bucket="trimtab"),
    "list buckets": lambda s3: s3.list_buckets()["Buckets"],
    "make": lambda s3: s3.create_bucket(Bucket="another"),
    "delete": lambda s3: s3.delete_bucket(Bucket="trimtab"),
    "policy": lambda s3: s3.put_bucket_policy(Bucket="trimtab", Policy="{}"),
    "acl": lambda s3: s3.put_bucket_acl(Bucket="trimtab", ACL="public-read-write"),
    "versioning": lambda s3: s3.put_bucket_versioning(Bucket="trimtab", VersioningConfiguration={"Status": "Enabled"}),
    "lifecycle": lambda s3: s3.put_bucket_lifecycle_configuration(
        Bucket="trimtab",
        LifecycleConfiguration={
            "Rules": [{"ID": "x", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}]
        },
    ),
    "another spelling": lambda s3: s3.get_object(Bucket="trimtab", Key=f"{OWN}/weights/../../../{OTHER}/x"),
}


def _refused(attempt: Callable[[Any], object], client: Any) -> bool:
    """Or answered with nothing, as a list of buckets is."""
    try:
        return not attempt(client)
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 403)


@pytest.mark.parametrize("role", ROLES)
async def test_no_role_touches_the_bucket_itself_or_gets_rights_from_the_store(
    role: str, server: EmbeddedSeaweed, made: Mapping[str, StoreCredentials]
) -> None:
    for name, attempt in BUCKET.items():
        assert _refused(attempt, client_of(server, made[role])), name
    everything = json.dumps(
        {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    )
    for more in ({}, {"Policy": everything}):
        with pytest.raises(ClientError, match="AccessDenied"):
            client_of(server, made[role], "sts").assume_role(RoleArn=JOB_ROLE_ARN, RoleSessionName="more", **more)
    with pytest.raises(ClientError):
        client_of(server, made[role], "iam").create_access_key(UserName="admin")


async def test_a_trainer_proves_the_store_and_a_renewed_file_is_taken_without_a_restart(
    server: EmbeddedSeaweed, made: Mapping[str, StoreCredentials], tmp_path: Path
) -> None:
    file = tmp_path / "object-store-credentials"
    file.write_text(made["trainer"].as_file())
    settings = ObjectStoreSettings(
        bucket="trimtab", prefix=OWN, endpoint_url=server.settings.endpoint_url, credentials_file=file
    )
    async with ObjectStore(settings) as store:
        await prove_store(store)
        file.write_text(made["rollout"].as_file())
        with pytest.raises(StoreUnauthorized):
            await store.put("checkpoints/x", b"x")
        renewed = await mint_of(server).keys(PLACE, roles=("trainer",), session="12345678-abcd")
        file.write_text(renewed["trainer"].as_file())

        async def written() -> bool:
            await store.put("checkpoints/x", b"x")
            return True

        assert await written()


async def test_what_the_store_does_not_grant_is_said_without_a_secret(server: EmbeddedSeaweed) -> None:
    with pytest.raises(StorageRefused, match="arn:aws:iam::role/another") as refused:
        await mint_of(server, role_arn="arn:aws:iam::role/another").keys(PLACE, roles=ROLES, session="s-1")
    secret = server.settings.secret_access_key
    assert secret is not None
    assert secret.get_secret_value() not in str(refused.value)


async def test_names_too_long_for_a_policy_are_refused_with_what_to_shorten(server: EmbeddedSeaweed) -> None:
    place = JobPlace(bucket="b", prefix="p" * 200, policies=tuple(f"policy-{n}" for n in range(20)))
    with pytest.raises(StorageRefused, match="shorten the names"):
        await mint_of(server).keys(place, roles=ROLES, session="s-1")


async def test_keys_that_an_administrator_gave_by_role_are_handed_on() -> None:
    given = {
        role: RoleKeySettings(access_key_id=SecretStr(f"{role}-id"), secret_access_key=SecretStr(f"{role}-secret"))
        for role in ROLES
    }
    settings = StorageRoleSettings.model_validate(given)
    mint = StorageMint(settings, ObjectStoreSettings(bucket="b"), clock=lambda: 1e9)
    keys = await mint.keys(PLACE, roles=ROLES, session="s")
    assert {role: json.loads(one.as_file()) for role, one in keys.items()} == {
        role: {"access_key_id": f"{role}-id", "secret_access_key": f"{role}-secret"} for role in ROLES
    }
    assert mint.window is None


async def test_keys_that_an_administrator_did_not_give_are_named_for_the_jobs_that_need_them() -> None:
    keys = RoleKeySettings(access_key_id=SecretStr("id"), secret_access_key=SecretStr("secret"))
    settings = StorageRoleSettings(rollout=keys, trainer=keys, dataflow=keys)
    mint = StorageMint(settings, ObjectStoreSettings(bucket="b"), clock=lambda: 1e9)
    assert set(await mint.keys(PLACE, roles=ROLES[:3], session="s")) == set(ROLES[:3])
    with pytest.raises(StorageRefused, match="TRIMTAB_STORAGE_ROLES__TRACKING__ACCESS_KEY_ID"):
        await mint.keys(PLACE, roles=ROLES, session="s")
