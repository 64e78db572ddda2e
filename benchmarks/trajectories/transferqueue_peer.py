"""Runs in TransferQueue's own environment, by its path: a writer and a reader process around its storage, and between
them a stage, where one is asked for, that reads the ids of rows and adds a column to them.

It is used as its authors' tutorials and performance test use it: simple storage units, the client's asynchronous calls,
`put`, then `get_meta` and `get_data`, in polling mode, which streaming readers need. Chosen in its favour:
- One storage unit. With two, puts of a group were no faster in either of two sessions on two busy cores, and slower at
  512 KiB.
- Several puts in flight at once; of groups, as many rows as our window has.
- Rows are cleared after the clock has stopped.
- A row is an int32 and a float32 column that together have the size of our encoded trajectory, which holds more tokens.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from typing import Any

import ray  # type: ignore[import-not-found, unused-ignore]
import torch
import transfer_queue  # type: ignore[import-not-found, unused-ignore]
from omegaconf import OmegaConf  # type: ignore[import-not-found, unused-ignore]
from tensordict import TensorDict  # type: ignore[import-not-found, unused-ignore]

_STORAGE_UNITS = 1
_CPUS = 4  # of Ray's own counting: each of its actors takes one, whatever the machine has
_OBJECT_STORE_BYTES = 1 << 30
_POLL_S = 0.002
_START_S = 120.0
_ROUND_S = 100.0
_COLUMNS = ["token_ids", "logprobs"]
_STAGE_COLUMN = "reference"


class Writer:
    """Puts rows that were made before the clock starts."""

    def __init__(self) -> None:
        transfer_queue.init()
        self._client = transfer_queue.get_client()
        self._puts: list[Any] = []

    async def prepare(self, *, row_bytes: int, put_rows: int, puts: int) -> None:
        tokens = row_bytes // 8
        self._puts = [
            TensorDict(
                {
                    "token_ids": torch.randint(0, 150_000, (put_rows, tokens), dtype=torch.int32),
                    "logprobs": -torch.rand(put_rows, tokens),
                },
                batch_size=(put_rows,),
            )
            for _ in range(puts)
        ]

    async def write(self, partition: str, *, puts_in_flight: int) -> float:
        """Returns when it began."""
        turn = asyncio.Semaphore(puts_in_flight)

        async def put(rows: Any) -> None:
            async with turn:
                await self._client.async_put(rows, partition_id=partition)

        began = time.monotonic()
        await asyncio.gather(*map(put, self._puts))
        return began


class Stage:
    """Reads the ids of rows and puts as many numbers beside them, several batches at once."""

    def __init__(self) -> None:
        transfer_queue.init()
        self._client = transfer_queue.get_client()
        self._numbers = torch.zeros(0)

    async def prepare(self, *, rows: int, tokens: int) -> None:
        self._numbers = -torch.rand(rows, tokens)

    async def compute(self, partition: str, *, rows: int, stage_rows: int, in_flight: int) -> None:
        turn = asyncio.Semaphore(in_flight)
        answering = []

        async def answer(meta: Any) -> None:
            try:
                batch = await self._client.async_get_data(meta)
                if len(batch["token_ids"]) != stage_rows:
                    raise RuntimeError(f"a stage got {len(batch['token_ids'])} rows, not {stage_rows}")
                said = TensorDict({_STAGE_COLUMN: self._numbers}, batch_size=(stage_rows,))
                await self._client.async_put(said, metadata=meta)
            finally:
                turn.release()

        for _ in range(rows // stage_rows):
            await turn.acquire()
            while True:
                meta = await self._client.async_get_meta(
                    data_fields=["token_ids"],
                    batch_size=stage_rows,
                    partition_id=partition,
                    mode="fetch",
                    task_name=_STAGE_COLUMN,
                )
                if meta.size:
                    break
                await asyncio.sleep(_POLL_S)
            answering.append(asyncio.create_task(answer(meta)))
        await asyncio.gather(*answering)


class Reader:
    """Takes batches as soon as they are complete."""

    def __init__(self) -> None:
        transfer_queue.init()
        self._client = transfer_queue.get_client()

    async def read(self, partition: str, *, rows: int, batch_rows: int, tokens: int, staged: bool) -> float:
        """Returns when the last batch was here, with the stage's column where there is one."""
        columns = [*_COLUMNS, _STAGE_COLUMN] if staged else _COLUMNS
        got = 0
        while got < rows:
            meta = await self._client.async_get_meta(
                data_fields=columns, batch_size=batch_rows, partition_id=partition, mode="fetch", task_name="train"
            )
            if meta.size == 0:
                await asyncio.sleep(_POLL_S)
                continue
            batch = await self._client.async_get_data(meta)
            for column in columns:
                values = batch[column].values() if batch[column].is_nested else batch[column]
                if values.numel() != batch_rows * tokens:
                    raise RuntimeError(f"{column} came with {values.numel()} values, not {batch_rows * tokens}")
            got += batch_rows
        return time.monotonic()

    async def clear(self, partition: str) -> None:
        await self._client.async_clear_partition(partition)


def run(question: dict[str, int], writer: Any, stage: Any, reader: Any, partition: str) -> float:
    tokens = question["row_bytes"] // 8
    puts = question["rows"] // question["put_rows"]
    preparing = writer.prepare.remote(row_bytes=question["row_bytes"], put_rows=question["put_rows"], puts=puts)
    ray.get(preparing, timeout=_ROUND_S)
    stage_rows = question["stage_rows"]
    computed = None
    if stage_rows:
        ray.get(stage.prepare.remote(rows=stage_rows, tokens=tokens), timeout=_ROUND_S)
        computed = stage.compute.remote(
            partition, rows=question["rows"], stage_rows=stage_rows, in_flight=question["puts_in_flight"]
        )
    ended = reader.read.remote(
        partition, rows=question["rows"], batch_rows=question["batch_rows"], tokens=tokens, staged=stage_rows > 0
    )
    began = writer.write.remote(partition, puts_in_flight=question["puts_in_flight"])
    seconds = ray.get(ended, timeout=_ROUND_S) - ray.get(began, timeout=_ROUND_S)
    if computed is not None:
        ray.get(computed, timeout=_ROUND_S)
    ray.get(reader.clear.remote(partition), timeout=_ROUND_S)
    return float(question["rows"] / seconds)


def main() -> None:
    # Whatever Ray prints goes to standard error: standard output is for answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    ray.init(
        num_cpus=_CPUS,
        object_store_memory=_OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=sys.argv[1],
    )
    settings = {
        "controller": {"polling_mode": True},
        "backend": {"SimpleStorage": {"num_data_storage_units": _STORAGE_UNITS}},
    }
    transfer_queue.init(OmegaConf.create(settings))
    writer = ray.remote(num_cpus=0)(Writer).remote()
    stage = ray.remote(num_cpus=0)(Stage).remote()
    reader = ray.remote(num_cpus=0)(Reader).remote()
    ray.get([one.__ray_ready__.remote() for one in (writer, stage, reader)], timeout=_START_S)
    print(json.dumps({"ready": True}), file=answers)
    for number, line in enumerate(sys.stdin):
        try:
            answer: dict[str, object] = {"rows_per_s": run(json.loads(line), writer, stage, reader, f"round-{number}")}
        except (ray.exceptions.RayError, RuntimeError) as error:
            answer = {"error": str(error).strip().splitlines()[-1]}  # the lines before are a traceback
        print(json.dumps(answer), file=answers)
    transfer_queue.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
