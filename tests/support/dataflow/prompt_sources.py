"""Prompt sources on disk, and a job that reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from tests.support.dataflow.jobs import job
from trimtab.api.policy import Model
from trimtab.dataflow.prompts.order import PromptOrder
from trimtab.dataflow.prompts.sources import read_prompts


async def order_of(
    folder: Path, *sources: dict[str, Any], models: Sequence[str] = ("model",), **data: Any
) -> PromptOrder:
    """The order of a job with these sources and a policy for each model."""
    desired = job(data={"prompts": list(sources), "shuffle": False, **data}, policies=len(models))
    policies = tuple(
        policy.model_copy(update={"model": Model(uri=uri)})
        for policy, uri in zip(desired.spec.policies, models, strict=True)
    )
    spec = desired.spec.model_copy(update={"policies": policies})
    return await read_prompts(desired.model_copy(update={"spec": spec}), folder=folder, object_store=None, scratch=None)


def prompts_of(order: PromptOrder, count: int) -> list[str]:
    return [str(order.at(position).content["prompt"]) for position in range(count)]


def ids_of(order: PromptOrder, count: int) -> list[str]:
    return [order.at(position).prompt_id for position in range(count)]


def write_jsonl(path: Path, prompts: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))


def write_parquet(path: Path, columns: dict[str, Any], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)


def write_dataset(folder: Path, shards: Sequence[pa.Table], *, split: str | None = None, **state: Any) -> None:
    """As Dataset.save_to_disk does: stream files, and a state that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{number:05d}-of-{len(shards):05d}.arrow" for number in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        with (folder / name).open("wb") as file, pa.ipc.new_stream(file, shard.schema) as stream:
            stream.write_table(shard, max_chunksize=3)
    whole = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "f",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
        **state,
    }
    (folder / "state.json").write_text(json.dumps(whole))
    (folder / "dataset_info.json").write_text("{}")


def write_dataset_dict(folder: Path, splits: dict[str, Sequence[pa.Table]]) -> None:
    for split, shards in splits.items():
        write_dataset(folder / split, shards, split=split)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))


def write_tokenizer(folder: Path, *, pattern: str, truncate: int | None = None) -> None:
    """A tokenizer that makes a token of each match of the pattern."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    if truncate is not None:
        tokenizer.enable_truncation(truncate)
        tokenizer.enable_padding(length=truncate)
    tokenizer.save(str(folder / "tokenizer.json"))
