"""How tests ask for a control plane and talk to it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from trimtab.embedded.kube.control_plane import ControlPlane


class Kubectl(Protocol):
    def __call__(
        self, *args: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]: ...


NewControlPlane = Callable[[], AbstractContextManager[ControlPlane]]
