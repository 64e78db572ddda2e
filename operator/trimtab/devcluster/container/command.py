"""The command that a container's manifest asks for, and the environment of the host that it begins with."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What a process needs to find itself and its libraries, and nothing secret; everything else is in the manifest.
_INHERITED = (
    "PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "SSL_CERT_FILE", "LD_LIBRARY_PATH",
)  # fmt: skip

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


class CannotRun(Exception):
    """The container's manifest asks for something that this node does not have."""


def host_environment(host: Mapping[str, str]) -> dict[str, str]:
    """The part of the host's environment that containers begin with; our interpreter's scripts come first."""
    kept = {name: host[name] for name in _INHERITED if name in host}
    scripts = str(Path(sys.executable).parent)
    kept["PATH"] = os.pathsep.join((scripts, kept.get("PATH") or os.defpath))
    return kept


def command_of(container: Mapping[str, Any], variables: Mapping[str, str]) -> list[str]:
    if not container.get("command"):
        raise CannotRun(
            f'container "{container["name"]}" has no command: the development node has no images, so the command that'
            f" {container.get('image') or 'its image'} would run must be in the manifest"
        )
    words = [*container["command"], *(container.get("args") or ())]
    command = [expanded(word, variables) for word in words]
    if command[0] == "python":
        command[0] = sys.executable
    return command


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """$(NAME) by the rules of Kubernetes: unknown names stay, $$ is a dollar sign."""

    def replacement(match: re.Match[str]) -> str:
        dollar, name = match.groups()
        return "$" if dollar else variables.get(name, match[0])

    return _REFERENCE.sub(replacement, text)


def check_supported(container: Mapping[str, Any]) -> None:
    """What would change a container's meaning if it were passed over in silence."""
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if "grpc" in (container.get(probe) or {}):
            raise CannotRun(f"{probe}.grpc is not supported on the development node; use httpGet, tcpSocket or exec")
    if "postStart" in (container.get("lifecycle") or {}):
        raise CannotRun("lifecycle.postStart is not supported on the development node; use an init container")
    if container.get("volumeDevices"):
        raise CannotRun("volumeDevices are not supported on the development node")
