"""The operator as it is deployed: a process of its own, with the rights that its Role gives it and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

import trimtab.operator.settings
from trimtab.embedded.kube.control_plane import ControlPlane

HOME = "trimtab-system"
ACCOUNT = f"system:serviceaccount:{HOME}:trimtab-operator"
# For what waits for other clusters: as the operator does it, sooner.
QUICK = {
    "TRIMTAB_REMOTE__DEADLINE_S": "3",
    "TRIMTAB_REMOTE__PROBE_S": "1",
    "TRIMTAB_REMOTE__RETRY_S": "0.5",
    "TRIMTAB_REMOTE__LONGEST_RETRY_S": "1",
    "TRIMTAB_REMOTE__REREAD_S": "1",
    "TRIMTAB_REMOTE__SWEEP_S": "1",
    "TRIMTAB_DELETION_DEADLINE_S": "15",
    # The same name each time, so that one that was killed need not be waited for.
    "TRIMTAB_IDENTITY": "one",
    # A machine that is busy for a while must not cost it the lease.
    "TRIMTAB_LEASE__DURATION_S": "120",
}
_ROLES = Path(trimtab.operator.settings.__file__).parent / "rbac"


def grant_cluster_role(plane: ControlPlane) -> None:
    plane.kubectl("create", "namespace", HOME)
    plane.kubectl("apply", "-f", str(_ROLES / "cluster.yaml"))


def grant_namespaced_role(plane: ControlPlane, namespace: str) -> str:
    """The user that has the shipped Role in the namespace, and nothing else."""
    plane.kubectl("apply", "-n", namespace, "-f", str(_ROLES / "namespaced.yaml"))
    return f"system:serviceaccount:{namespace}:trimtab-operator"


class OperatorProcess:
    def __init__(
        self,
        folder: Path,
        *,
        plane: ControlPlane,
        environment: Mapping[str, str],
        user: str = ACCOUNT,
        home: str = HOME,
        server: str | None = None,
    ) -> None:
        self.log_file = folder / "operator.log"
        folder.mkdir(parents=True, exist_ok=True)
        kubeconfig = folder / "kubeconfig"
        content = yaml.safe_load(plane.kubeconfig(user=user, groups=()).read_text())
        content["contexts"][0]["context"]["namespace"] = home
        if server is not None:
            content["clusters"][0]["cluster"]["server"] = server
        kubeconfig.write_text(yaml.safe_dump(content))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")},
            "KUBECONFIG": str(kubeconfig),
            "TRIMTAB_IMAGES": "trimtab:test",
            "TRIMTAB_PROBES__HOST": "127.0.0.1",
            "TRIMTAB_PROBES__PORT": "0",
            "TRIMTAB_LOGS__FORMAT": "json",
            "TRIMTAB_LEASE__DURATION_S": "3",
            "TRIMTAB_REPORT_INTERVAL_S": "1",
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> OperatorProcess:
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "trimtab.operator", *arguments],
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def ended(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def kill(self) -> None:
        """As a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(120)

    def stop(self) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(200)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
