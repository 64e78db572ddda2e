"""Ranks of one pod share its settings, but neither its port nor a folder on its disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trimtab.fabric.pod import JobMisconfigured
from trimtab.trainer.rank_place import RankPlace, TrainerPodSettings


@pytest.fixture
def settings(tmp_path: Path) -> TrainerPodSettings:
    return TrainerPodSettings.model_validate(
        {
            "pod": {"namespace": "n", "job": "j", "role": "trainer", "name": "t-1", "policy": "solver"},
            "nats": {"servers": ["nats://127.0.0.1:4222"]},
            "object_store": {"bucket": "b"},
            "job_file": tmp_path / "job.yaml",
            "scratch": tmp_path / "scratch",
        }
    )


def test_one_rank_of_a_pod_answers_at_its_port(settings: TrainerPodSettings) -> None:
    places = [RankPlace.of({"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2)}) for rank in range(2, 4)]
    assert [place.leads_pod for place in places] == [True, False]
    first, second = (place.own(settings) for place in places)
    assert first.probes == settings.probes
    assert second.probes.port == 0
    assert first.scratch != second.scratch
    assert {first.scratch.parent, second.scratch.parent} == {settings.scratch}


def test_without_torchrun_there_is_one_rank() -> None:
    assert RankPlace.of({}) == RankPlace(rank=0, world_size=1, local_rank=0)


def test_a_pod_with_fewer_gpus_than_ranks_is_misconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(JobMisconfigured, match=r"devicesPerReplica: the pod has 2 GPUs, and none for rank 2 in it"):
        RankPlace(rank=2, world_size=4, local_rank=2).device()
