"""Checkpoints of a learner in this process."""

from __future__ import annotations

from pathlib import Path

from tests.support.trainer.storages import StorageSpec, seal_of
from trimtab.trainer.background import Background
from trimtab.trainer.checkpoints.resume import resume
from trimtab.trainer.checkpoints.saver import CheckpointSaver
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.learner import Learner


class Shelf:
    """Checkpoints in a folder, and who was told of them."""

    def __init__(self, folder: Path) -> None:
        self._place = StorageSpec(folder).open()
        self._epoch = 0
        self.acknowledged: list[int] = []

    def save(self, learner: Learner) -> None:
        with Background() as background:
            saver = CheckpointSaver(learner, self._opened(background), background, rank=0, acknowledge=self._told)
            saver.begin(lease_id="l")
            saver.flush()

    def restore(self, learner: Learner) -> None:
        with Background() as background:
            resume(learner, self._opened(background), background, rank=0)

    def _opened(self, background: Background) -> CheckpointStore:
        self._epoch += 1
        checkpoints = CheckpointStore(self._place, seal_of(), keep=1)
        background.run(checkpoints.claim(self._epoch))
        return checkpoints

    async def _told(self, step: int, *, lease_id: str, weight_version: int) -> None:
        self.acknowledged.append(step)
