"""The operator as a supervised process beside a development cluster, with the broker and store that jobs dial."""

from __future__ import annotations

import os
import sys
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import yaml
from pydantic import BaseModel

from trimtab.embedded.child import Command
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.embedded.ports import LOOPBACK
from trimtab.embedded.seaweedfs import JOB_ROLE_ARN, EmbeddedSeaweed
from trimtab.embedded.server import EmbeddedServer
from trimtab.fabric.settings import LogSettings, NatsSettings, ObjectStoreSettings, ProbeSettings, environment_for
from trimtab.operator.admission.configuration import REVIEW, webhook_configuration
from trimtab.operator.settings import AdmissionSettings, OwnSecret

_USER = "trimtab-operator"
_WEBHOOK = "trimtab-admission"
_JOB_KEYS = "trimtab-job-keys"


class _Accounts(BaseModel):
    seed_file: Path


class _Sts(BaseModel):
    role_arn: str


class _StorageRoles(BaseModel):
    sts: _Sts
    datasets: str
    models: str


class _JobKeys(BaseModel):
    secret: OwnSecret


class _OperatorEnvironment(BaseModel):
    nats: NatsSettings
    nats_accounts: _Accounts
    object_store: ObjectStoreSettings
    storage_roles: _StorageRoles
    job_keys: _JobKeys
    logs: LogSettings
    probes: ProbeSettings
    admission: AdmissionSettings
    images: str


class DevelopmentOperator(EmbeddedServer):
    """Started with KUBECONFIG as any operator outside its cluster, and brought back when it dies."""

    name = "operator"
    port_names = ("probes", "webhook")
    # A lease of one that was killed has to run out first.
    start_timeout_s = 60.0

    def __init__(
        self, data_folder: Path, *, control_plane: ControlPlane, nats: EmbeddedNatsWithAccounts, store: EmbeddedSeaweed
    ) -> None:
        super().__init__(data_folder)
        self._control_plane = control_plane
        self._nats = nats
        self._store = store

    def command(self) -> Command:
        kubeconfig = self._control_plane.kubeconfig(user=_USER)
        self._install_webhook()
        settings = _OperatorEnvironment(
            nats=self._nats.address,
            nats_accounts=_Accounts(seed_file=self._nats.operator_seed_file),
            object_store=self._store.settings,
            storage_roles=_StorageRoles(
                sts=_Sts(role_arn=JOB_ROLE_ARN),
                datasets=f"{self._store.settings.bucket}/datasets",
                models=f"{self._store.settings.bucket}/models",
            ),
            job_keys=_JobKeys(secret=OwnSecret(name=_JOB_KEYS, namespace="default")),
            logs=LogSettings(format="json"),
            probes=ProbeSettings(host=LOOPBACK, port=self.ports["probes"]),
            admission=AdmissionSettings(
                host=LOOPBACK,
                port=self.ports["webhook"],
                secret=OwnSecret(name=_WEBHOOK, namespace="default"),
                server_name=LOOPBACK,
                webhook=_WEBHOOK,
            ),
            # The development node has no images and looks at none.
            images="trimtab/development",
        )
        return Command(
            arguments=[sys.executable, "-P", "-m", "trimtab.operator"],
            environment={**os.environ, **environment_for(settings), "KUBECONFIG": str(kubeconfig)},
            log_file=self.log_file,
            folder=self.data_folder,
        )

    def _install_webhook(self) -> None:
        address: dict[str, object] = {"url": f"https://{LOOPBACK}:{self.ports['webhook']}/{REVIEW}"}
        body = webhook_configuration(_WEBHOOK, client_config=address, operator=_USER)
        self._control_plane.kubectl(
            "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump(body)
        )

    def probe(self) -> bool:
        """Whether it works, or waits for the lease of one that was killed."""
        connection = HTTPConnection(LOOPBACK, self.ports["probes"], timeout=2.0)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == HTTPStatus.OK
        finally:
            connection.close()
