"""What makes a cluster that runs pods of a control plane: the scheduler, the controller manager and a node."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from trimtab.devcluster.node.server import DevelopmentNode
from trimtab.embedded.kube.assets import ControllerAssets
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.kube.controller_manager import CONTROLLERS, EmbeddedControllerManager
from trimtab.embedded.kube.scheduler import EmbeddedScheduler


class DevelopmentCluster:
    """Pods that are pending in the control plane begin to run."""

    def __init__(
        self,
        data_folder: Path,
        *,
        control_plane: ControlPlane,
        assets: ControllerAssets,
        capacity: Sequence[str] = (),
        host_paths_allowed: bool = False,
        controllers: Sequence[str] = CONTROLLERS,
    ) -> None:
        self.controller_manager = EmbeddedControllerManager(
            data_folder / "controller-manager",
            control_plane=control_plane,
            program=assets.controller_manager,
            controllers=controllers,
        )
        self.scheduler = EmbeddedScheduler(
            data_folder / "scheduler", control_plane=control_plane, program=assets.scheduler
        )
        self.node = DevelopmentNode(
            data_folder / "node",
            control_plane=control_plane,
            capacity=capacity,
            host_paths_allowed=host_paths_allowed,
        )

    def start(self) -> Self:
        """All at once: each needs the API server, and none needs another to start."""
        servers = (self.controller_manager, self.scheduler, self.node)
        try:
            with ThreadPoolExecutor(len(servers)) as starting:
                list(starting.map(lambda server: server.start(), servers))
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """The node first, which says that it leaves."""
        for server in (self.node, self.scheduler, self.controller_manager):
            server.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
