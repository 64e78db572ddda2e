"""kube-scheduler for one embedded control plane: it binds pods to nodes, and preempts by priority."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.embedded.kube.component import ControlPlaneComponent


class EmbeddedScheduler(ControlPlaneComponent):
    name = "kube-scheduler"
    user = "system:kube-scheduler"

    def options(self) -> Sequence[str]:
        return ()
