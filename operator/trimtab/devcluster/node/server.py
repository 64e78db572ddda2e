"""The development node as a supervised process beside an embedded control plane."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from trimtab.embedded.child import Command
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.ports import LOOPBACK
from trimtab.embedded.server import EmbeddedServer

NODE_NAME = "development"


class DevelopmentNode(EmbeddedServer):
    """Killed, it takes its pods' processes with it; started again, it goes on with the pods it finds."""

    name = "node"
    port_names = ("kubelet",)
    start_timeout_s = 60.0
    stop_grace_s = 20.0

    def __init__(
        self,
        data_folder: Path,
        *,
        control_plane: ControlPlane,
        capacity: Sequence[str] = (),
        host_paths_allowed: bool = False,
        supervise: bool = True,
    ) -> None:
        super().__init__(data_folder, supervise=supervise)
        self._control_plane = control_plane
        self._capacity = tuple(capacity)
        self._host_paths_allowed = host_paths_allowed

    def command(self) -> Command:
        certificate, key = self._control_plane.serving_certificate(
            user=f"system:node:{NODE_NAME}", groups=("system:nodes",), folder=self.data_folder
        )
        arguments = [
            # -P: the working folder is no place for modules, and pods must not be shown it as one.
            sys.executable, "-P", "-m", "trimtab.devcluster.node",
            "--name", NODE_NAME,
            "--folder", str(self.data_folder),
            "--kubeconfig", str(self._control_plane.kubeconfig(user="development-node")),
            "--authority", str(self._control_plane.authority_file),
            "--certificate", str(certificate),
            "--key", str(key),
            "--port", str(self.ports["kubelet"]),
            *(f"--capacity={entry}" for entry in self._capacity),
        ]  # fmt: skip
        if self._host_paths_allowed:
            arguments.append("--allow-host-path")
        # All of the environment: the node chooses what of it pods are given, which is next to nothing.
        return Command(
            arguments=arguments, environment=dict(os.environ), log_file=self.log_file, folder=self.data_folder
        )

    def probe(self) -> bool:
        with socket.create_connection((LOOPBACK, self.ports["kubelet"]), timeout=2.0):
            return True
