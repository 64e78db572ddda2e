"""What the scheduler and the controller manager have in common: they dial the API server with a certificate of their
own, and serve their health and metrics on loopback.
"""

from __future__ import annotations

import http.client
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from trimtab.embedded.child import Command
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.ports import LOOPBACK
from trimtab.embedded.server import EmbeddedServer
from trimtab.fabric.tls import ClientTls


class ControlPlaneComponent(EmbeddedServer):
    """A program of Kubernetes that works through the API server."""

    port_names = ("https",)
    start_timeout_s = 90.0
    user: str
    """Its name in the cluster, to which Kubernetes' own roles are bound."""

    def __init__(
        self, data_folder: Path, *, control_plane: ControlPlane, program: Path, supervise: bool = True
    ) -> None:
        super().__init__(data_folder, supervise=supervise)
        self.control_plane = control_plane
        self._program = program

    @abstractmethod
    def options(self) -> Sequence[str]:
        """Arguments beside those that all components take."""

    def command(self) -> Command:
        kubeconfig = self.control_plane.kubeconfig(user=self.user, groups=())
        certificate, key = self.control_plane.serving_certificate(user=self.user, folder=self.data_folder)
        return Command(
            arguments=[
                str(self._program),
                f"--kubeconfig={kubeconfig}",
                f"--authentication-kubeconfig={kubeconfig}",
                f"--authorization-kubeconfig={kubeconfig}",
                f"--bind-address={LOOPBACK}",
                f"--secure-port={self.ports['https']}",
                f"--tls-cert-file={certificate}",
                f"--tls-private-key-file={key}",
                # There is one of it: a lease would only make a restart wait.
                "--leader-elect=false",
                *self.options(),
            ],
            environment={"HOME": str(self.data_folder)},
            log_file=self.log_file,
            folder=self.data_folder,
        )

    def probe(self) -> bool:
        tls = ClientTls(authority=self.control_plane.authority_file)
        connection = http.client.HTTPSConnection(LOOPBACK, self.ports["https"], timeout=5, context=tls.context())
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.HTTPStatus.OK
        finally:
            connection.close()
