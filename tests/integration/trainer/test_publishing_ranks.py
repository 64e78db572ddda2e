"""The weights that are published of a model that is spread over ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.template_process import TemplateProcess
from tests.support.trainer.forked_ranks import run_ranks
from tests.support.trainer.publishing_ranks import RANKS, run_rank
from tests.support.trainer.samples import policy
from trimtab.trainer.learner import Learner
from trimtab.trainer.model_weights import ModelWeights

pytestmark = pytest.mark.slow


async def test_rank_0_alone_keeps_them_and_they_are_those_of_one_rank(
    rank_template: TemplateProcess, model: Path, tmp_path: Path
) -> None:
    await run_ranks(rank_template, run_rank, model, tmp_path / "read", world_size=RANKS)
    alone = Learner(policy(dtype="bfloat16"), model_path=model).weights()
    assert isinstance(alone, ModelWeights)
    expected = np.empty(alone.layout.data_bytes, dtype=np.uint8)
    for block in alone.layout.blocks:
        alone.read(block, expected[block.start : block.end])
    assert torch.equal(load_file(tmp_path / "read")["read"], torch.from_numpy(expected))
