"""etcd for one embedded control plane."""

from __future__ import annotations

import http.client
from pathlib import Path

from trimtab.embedded.child import Command
from trimtab.embedded.ports import LOOPBACK
from trimtab.embedded.server import EmbeddedServer


class EmbeddedEtcd(EmbeddedServer):
    """A single member. Writes are not synced: a crash of the process loses nothing, a crash of the machine may."""

    name = "etcd"
    port_names = ("client", "peer")

    def __init__(self, data_folder: Path, *, program: Path, supervise: bool = True) -> None:
        super().__init__(data_folder, supervise=supervise)
        self._program = program

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports['client']}"

    def command(self) -> Command:
        peer = f"http://{LOOPBACK}:{self.ports['peer']}"
        return Command(
            arguments=[
                str(self._program),
                f"--data-dir={self.data_folder / 'data'}",
                f"--listen-client-urls={self.url}",
                f"--advertise-client-urls={self.url}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
                # As kubeadm has it: the API server's caches learn that they are up to date where nothing changes.
                "--watch-progress-notify-interval=5s",
                "--log-level=warn",
            ],
            log_file=self.log_file,
            folder=self.data_folder,
        )

    def probe(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.ports["client"], timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        finally:
            connection.close()
