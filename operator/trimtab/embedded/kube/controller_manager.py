"""kube-controller-manager for one embedded control plane, with the controllers that are of use on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trimtab.embedded.kube.component import ControlPlaneComponent
from trimtab.embedded.kube.control_plane import ControlPlane

GARBAGE_COLLECTOR = "garbage-collector-controller"
RESOURCE_QUOTA = "resourcequota-controller"
WORKLOADS = (
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "job-controller",
    "replicaset-controller",
    "statefulset-controller",
    "ttl-after-finished-controller",
)
"""They make pods of objects that are no pods."""
# Left out is what needs a cloud, persistent volumes or a network of pods.
CONTROLLERS = (
    GARBAGE_COLLECTOR,
    RESOURCE_QUOTA,
    *WORKLOADS,
    "clusterrole-aggregation-controller",
    "disruption-controller",
    "horizontal-pod-autoscaler-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "taint-eviction-controller",
)


class EmbeddedControllerManager(ControlPlaneComponent):
    """Each controller has a service account and the role that Kubernetes gives it, as in a real cluster."""

    name = "kube-controller-manager"
    user = "system:kube-controller-manager"

    def __init__(
        self,
        data_folder: Path,
        *,
        control_plane: ControlPlane,
        program: Path,
        controllers: Sequence[str] = CONTROLLERS,
        supervise: bool = True,
    ) -> None:
        super().__init__(data_folder, control_plane=control_plane, program=program, supervise=supervise)
        self._controllers = tuple(controllers)

    def options(self) -> Sequence[str]:
        return (
            f"--controllers={','.join(self._controllers)}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.control_plane.apiserver.service_account_key_file}",
            f"--root-ca-file={self.control_plane.authority_file}",
            # A person watches: sooner than in a cluster of thousands of nodes.
            "--node-monitor-period=2s",
            "--horizontal-pod-autoscaler-sync-period=5s",
        )
