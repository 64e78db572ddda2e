"""What stages compute about rows, by transformers' own models: an engine would say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM

from trimtab.trainer.batch import Row


def with_columns(rows: Sequence[Row], columns: Mapping[str, Sequence[npt.NDArray[np.float32]]]) -> list[Row]:
    """`columns` have, by stage, an array for each row, aligned with its tokens."""
    return [
        replace(
            row,
            columns={
                **row.columns,
                **{stage: np.where(row.mask, of[number], 0).astype(np.float32) for stage, of in columns.items()},
            },
        )
        for number, row in enumerate(rows)
    ]


@torch.no_grad()
def logprobs_under(folder: Path, rows: Sequence[Row]) -> list[npt.NDArray[np.float32]]:
    """Of every token of each row under the model in the folder; that of the first is zero."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for row in rows:
        ids = torch.from_numpy(row.token_ids.astype(np.int64))
        following = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1].float(), dim=-1)
        chosen = following.gather(1, ids[1:, None])[:, 0].numpy()
        found.append(np.concatenate((np.zeros(1), chosen)).astype(np.float32))
    return found
