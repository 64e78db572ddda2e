"""Rows in a file for other programs: JSON lines, Parquet, or a folder of Hugging Face's `datasets`; the same columns in
each. A file appears under its name when it is whole.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import click

from trimtab.cli.samples.choice import StoredRow
from trimtab.cli.samples.pieces import Piece
from trimtab.fabric.wire.trajectory import Failed, Scored, Trajectory

_ROWS_AT_ONCE = 256


class Writer(Protocol):
    def add(self, record: dict[str, Any]) -> None: ...


def record_of(stored: StoredRow, row: Trajectory, pieces: Sequence[Piece]) -> dict[str, Any]:
    scored = row.outcome if isinstance(row.outcome, Scored) else None
    failed = row.outcome if isinstance(row.outcome, Failed) else None
    return {
        "trajectory_id": stored.trajectory_id,
        "policy": row.policy,
        "role": row.role,
        "prompt_id": row.prompt_id,
        "group_id": row.group_id,
        "group_index": row.group_index,
        "group_size": row.group_size,
        "part": row.part,
        "parts": row.parts,
        "label": row.label,
        "benchmark": row.benchmark,
        "step": stored.step,
        "reward": scored.reward if scored else None,
        "reward_parts": [{"name": name, "reward": value} for name, value in row.reward_parts.items()],
        "turn_rewards": [{"turn": number, "reward": turn.reward} for number, turn in enumerate(row.turn_rewards, 1)],
        "finish": str(scored.finish) if scored else None,
        "error": f"{failed.error}: {failed.message}" if failed else None,
        "oldest_version": row.oldest_version,
        "newest_version": row.newest_version,
        "prompt_tokens": row.prompt_tokens,
        "response_tokens": row.response_tokens,
        "trained_tokens": row.trained_tokens,
        "worker": row.worker,
        "pool": row.pool,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "pieces": [_piece(piece) for piece in pieces],
    }


def _piece(piece: Piece) -> dict[str, Any]:
    return {
        "producer": piece.producer.name.lower(),
        "text": piece.text,
        "turn": piece.turn,
        "version": piece.version,
        "token_ids": list(piece.token_ids),
        "logprobs": list(piece.logprobs),
    }


@contextmanager
def writer_to(output: Path) -> Iterator[Writer]:
    """By the end of its name: .jsonl, .parquet, or none for a folder. Whatever it needs is asked for before rows are
    read.
    """
    if not output.parent.is_dir():
        raise click.BadParameter(f"there is no folder {output.parent}", param_hint="--output")
    if output.suffix not in (".jsonl", ".parquet", ""):
        raise click.BadParameter(
            f"{output.name} ends with neither .jsonl nor .parquet; without an ending it is a folder of datasets",
            param_hint="--output",
        )
    if output.suffix == "" and output.exists() and not _is_replaceable(output):
        raise click.BadParameter(f"{output} is there, and is no folder of datasets", param_hint="--output")
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".samples-") as scratch:
        written = Path(scratch) / (output.name or "rows")
        if output.suffix == ".jsonl":
            with written.open("w", encoding="utf-8") as file:
                yield _JsonLines(file)
        elif output.suffix == ".parquet":
            with _parquet(written) as parquet:
                yield parquet
        else:
            datasets = _datasets()
            rows = Path(scratch) / "rows.parquet"
            with _parquet(rows) as parquet:
                yield parquet
            datasets.Dataset.from_parquet(str(rows), cache_dir=str(Path(scratch) / "cache")).save_to_disk(str(written))
            if output.exists():
                shutil.rmtree(output)
        written.replace(output)


def _is_replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / "dataset_info.json").is_file() or not any(folder.iterdir()))


class _JsonLines:
    def __init__(self, file: Any) -> None:
        self._file = file

    def add(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")


class _Parquet:
    """`rows` become a row group when there are enough."""

    def __init__(self, writer: Any, schema: Any) -> None:
        self._writer = writer
        self._schema = schema
        self._rows: list[dict[str, Any]] = []

    def add(self, record: dict[str, Any]) -> None:
        self._rows.append(record)
        if len(self._rows) == _ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        import pyarrow

        if self._rows:
            self._writer.write_table(pyarrow.Table.from_pylist(self._rows, schema=self._schema))
            self._rows = []


@contextmanager
def _parquet(file: Path) -> Iterator[_Parquet]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise click.ClickException("Parquet needs pyarrow: pip install 'trimtab[dataflow]'") from None
    schema = _schema(pyarrow)
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        rows = _Parquet(writer, schema)
        yield rows
        rows.flush()


def _schema(pa: Any) -> Any:
    text, whole, real = pa.string(), pa.int64(), pa.float64()
    piece = pa.struct(
        {
            "producer": text,
            "text": text,
            "turn": whole,
            "version": whole,
            "token_ids": pa.list_(pa.int32()),
            "logprobs": pa.list_(pa.float32()),
        }
    )
    return pa.schema(
        {
            **dict.fromkeys(("trajectory_id", "policy", "role", "prompt_id", "group_id"), text),
            **dict.fromkeys(("group_index", "group_size", "part", "parts"), whole),
            **dict.fromkeys(("label", "benchmark"), text),
            "step": whole,
            "reward": real,
            "reward_parts": pa.list_(pa.struct({"name": text, "reward": real})),
            "turn_rewards": pa.list_(pa.struct({"turn": whole, "reward": real})),
            **dict.fromkeys(("finish", "error"), text),
            **dict.fromkeys(
                ("oldest_version", "newest_version", "prompt_tokens", "response_tokens", "trained_tokens"), whole
            ),
            **dict.fromkeys(("worker", "pool"), text),
            **dict.fromkeys(("started_at", "finished_at"), real),
            "pieces": pa.list_(piece),
        }
    )


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise click.ClickException(
            "a folder of datasets needs the library: pip install datasets; or let --output end with .jsonl or .parquet"
        ) from None
    return datasets
