"""Folders that `datasets.save_to_disk` wrote: Arrow stream files, mapped where they lie."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from trimtab.dataflow.prompts.arrow import ArrowRows
from trimtab.dataflow.prompts.prompt import Progress, PromptSourceError

SPLITS_FILE = "dataset_dict.json"
STATE_FILE = "state.json"
_INDICES = ("_indices_data_files", "_indices_files")


def open_hugging_face(folder: Path, *, split: str, prefix: str, prompt_column: str, progress: Progress) -> ArrowRows:
    """All rows of a split, in the order of its files. What `set_format` chose to show is not looked at."""
    home = _split_folder(folder, split=split)
    schema: pa.Schema | None = None
    batches: list[pa.RecordBatch] = []
    rows = 0
    for file in _data_files(home, split=split):
        try:
            with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
                if schema is not None and not stream.schema.equals(schema):
                    raise PromptSourceError(f"{file}: its columns are not those of the files before it")
                schema = stream.schema
                for batch in stream:
                    # Its offsets will be followed into mapped memory, where a wrong one ends the process.
                    batch.validate(full=True)
                    batches.append(batch)
                    rows += batch.num_rows
                    progress.note("mapping Arrow files", source=prefix, rows=rows)
        except (pa.ArrowException, OSError) as error:
            raise PromptSourceError(f"{file}: not readable as an Arrow stream: {error}") from None
    if schema is None:
        raise PromptSourceError(f"{home / STATE_FILE} names no data files")
    return ArrowRows(schema, batches, file=home.name, prefix=prefix, prompt_column=prompt_column)


def _split_folder(folder: Path, *, split: str) -> Path:
    if (folder / SPLITS_FILE).is_file():
        splits = _read_json(folder / SPLITS_FILE).get("splits", [])
        if split not in splits:
            raise PromptSourceError(f"{folder} has no split {split!r}, only {', '.join(map(str, splits))}")
        return folder / split
    if not (folder / STATE_FILE).is_file():
        raise PromptSourceError(
            f"{folder} holds neither {SPLITS_FILE} nor {STATE_FILE}; expected a folder written by datasets.save_to_disk"
        )
    return folder


def _data_files(home: Path, *, split: str) -> list[Path]:
    state = _read_json(home / STATE_FILE)
    if any(state.get(name) for name in _INDICES):
        raise PromptSourceError(
            f"{home} keeps the order of its rows in an indices file; save it again after dataset.flatten_indices()"
        )
    # A part of a split is called train[:1000].
    saved = state.get("_split")
    if saved is not None and split not in (saved, str(saved).partition("[")[0]):
        raise PromptSourceError(f"{home} is the split {saved!r}, not {split!r}; set huggingFace.split")
    names = [str(entry.get("filename", "")) for entry in state.get("_data_files") or []]
    for name in names:
        if PurePosixPath(name).name != name or not (home / name).is_file():
            raise PromptSourceError(f"{home / STATE_FILE} names {name!r}, which is not a file beside it")
    return [home / name for name in names]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise PromptSourceError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise PromptSourceError(f"{path}: expected a JSON object")
    return content
