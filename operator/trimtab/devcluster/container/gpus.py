"""Which GPUs a container sees: as many as it asked for, and no other's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.devcluster.pod.spec import container_requests

RESOURCE = "nvidia.com/gpu"
VARIABLE = "CUDA_VISIBLE_DEVICES"


def host_gpus(host: Mapping[str, str]) -> list[str]:
    """The host's GPUs, or those of them that CUDA_VISIBLE_DEVICES shows to this process."""
    if VARIABLE in host:
        return [device for device in host[VARIABLE].split(",") if device]
    return [path.name.removeprefix("nvidia") for path in sorted(Path("/dev").glob("nvidia[0-9]*"))]


class GpuBook:
    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = tuple(devices)
        self._held: dict[tuple[str, str], tuple[str, ...]] = {}

    def take(self, container: Mapping[str, Any], *, uid: str) -> dict[str, str]:
        """The variable that says which; a container that asks for none sees none."""
        owner = (uid, str(container["name"]))
        count = int(container_requests(container).get(RESOURCE, 0))
        if owner not in self._held:
            taken = {device for devices in self._held.values() for device in devices}
            free = [device for device in self._devices if device not in taken]
            # Fewer than asked for only where more capacity was declared than there is.
            self._held[owner] = tuple(free[:count])
        return {VARIABLE: ",".join(self._held[owner])}

    def release(self, *, uid: str) -> None:
        self._held = {owner: devices for owner, devices in self._held.items() if owner[0] != uid}
