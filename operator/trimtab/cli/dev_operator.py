"""The operator as a supervised process beside a development cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trimtab.embedded.child import Command
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.server import EmbeddedServer

OPERATOR_MODULE = "trimtab.operator"


class DevelopmentOperator(EmbeddedServer):
    """Started with KUBECONFIG as any operator outside its cluster, and brought back when it dies."""

    name = "operator"
    port_names = ()

    def __init__(self, data_folder: Path, *, control_plane: ControlPlane) -> None:
        super().__init__(data_folder)
        self._control_plane = control_plane

    def command(self) -> Command:
        kubeconfig = self._control_plane.kubeconfig(user="trimtab-operator")
        return Command(
            arguments=[sys.executable, "-P", "-m", OPERATOR_MODULE],
            environment={**os.environ, "KUBECONFIG": str(kubeconfig)},
            log_file=self.log_file,
            folder=self.data_folder,
        )

    def probe(self) -> bool:
        """It serves nobody: that it was started is all there is to wait for."""
        return True
