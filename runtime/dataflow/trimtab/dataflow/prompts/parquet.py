"""Parquet: unpacked once into Arrow batches on disk, because a shuffled order would decode a row group per prompt."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from trimtab.dataflow.prompts.arrow import ArrowRows
from trimtab.dataflow.prompts.prompt import Progress, PromptSourceError

_BATCH_BYTES = 16 << 20
_MAX_BATCH_ROWS = 4096


def open_parquet(
    files: Mapping[str, Path], *, scratch: Path | None, prompt_column: str, progress: Progress
) -> list[ArrowRows]:
    """The rows of each file, by the prefix of their ids. All files share one unpacked file without a name in `scratch`
    (the system's folder for temporary files without it), which is gone when the process is."""
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=scratch) as unpacked:
        ends = []
        for prefix, path in files.items():
            try:
                _unpack(path, unpacked, prefix=prefix, progress=progress)
            except (pa.ArrowException, OSError) as error:
                # A damaged page is an OSError, too, but without the number that those of the system have.
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                raise PromptSourceError(f"{path.name}: not readable as Parquet: {error}") from None
            ends.append(unpacked.tell())
        unpacked.flush()
        mapped = memoryview(mmap.mmap(unpacked.fileno(), 0, access=mmap.ACCESS_READ))
    rows = []
    for (prefix, path), begin, end in zip(files.items(), [0, *ends], ends, strict=False):
        stream = pa.ipc.open_stream(pa.py_buffer(mapped[begin:end]))
        rows.append(ArrowRows(stream.schema, list(stream), file=path.name, prefix=prefix, prompt_column=prompt_column))
    return rows


def _unpack(path: Path, sink: IO[bytes], *, prefix: str, progress: Progress) -> None:
    with pq.ParquetFile(path) as source, pa.ipc.new_stream(sink, source.schema_arrow) as stream:
        rows = source.metadata.num_rows
        groups = [source.metadata.row_group(number) for number in range(source.metadata.num_row_groups)]
        row_bytes = sum(group.total_byte_size for group in groups) // max(1, rows)
        batch_rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes)))
        done = 0
        for batch in source.iter_batches(batch_size=batch_rows):
            stream.write_batch(batch)
            done += batch.num_rows
            progress.note("unpacking Parquet", source=prefix, rows=done, of=rows)
