"""Where a rank is among the others, as torchrun tells it, and what it must not share with the ranks beside it in its
pod: one of them answers probes and says that the pod is alive, and each has a disk folder of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from trimtab.fabric.pod import JobMisconfigured, JobPodSettings
from trimtab.fabric.settings import ProbeSettings

_LOOPBACK = "127.0.0.1"


class TrainerPodSettings(JobPodSettings):
    """`attempt` counts the restarts of the rank group: the dataflow refuses ranks of an older one."""

    attempt: int = 0
    threads: int = 1
    scratch: Path


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """`local_rank` counts the ranks of a pod, `rank` those of all pods."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        return cls(
            rank=int(environment.get("RANK", "0")),
            world_size=int(environment.get("WORLD_SIZE", "1")),
            local_rank=int(environment.get("LOCAL_RANK", "0")),
        )

    @property
    def leads_pod(self) -> bool:
        return self.local_rank == 0

    def own(self, settings: TrainerPodSettings) -> TrainerPodSettings:
        """The pod's settings as this rank has them."""
        own: dict[str, object] = {"scratch": settings.scratch / str(self.local_rank)}
        if not self.leads_pod:
            # The pod's port is taken by the rank that leads it; what others measure is the same.
            own["probes"] = ProbeSettings(host=_LOOPBACK, port=0)
        return settings.model_copy(update=own)

    def device(self) -> torch.device:
        """The GPU of this rank if the pod has any, else the CPU. Raises JobMisconfigured when there is none left."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        gpus = torch.cuda.device_count()
        if self.local_rank >= gpus:
            raise JobMisconfigured(
                f"policies[].trainer.devicesPerReplica: the pod has {gpus} GPUs, and none for rank {self.local_rank} in"
                " it; set it to the number of GPUs in trainer.resources.limits"
            )
        device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(device)
        return device
