"""How tests ask for a control plane and its controllers, and talk to it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.kube.controller_manager import EmbeddedControllerManager


class Kubectl(Protocol):
    def __call__(
        self, *args: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]: ...


class NewControllerManager(Protocol):
    def __call__(self, plane: ControlPlane, *controllers: str) -> EmbeddedControllerManager: ...


NewControlPlane = Callable[[], AbstractContextManager[ControlPlane]]
