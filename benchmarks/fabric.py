"""What our layer costs: trajectory encoding against the usual formats, and the NATS and object store clients against
the raw libraries doing the same work in the same run. `python -m benchmarks.fabric` starts its own servers.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import msgpack
import nats
import numpy as np
import zstandard
from botocore.config import Config
from nats.aio.client import Client as NatsClient

from benchmarks.isolated_bus import measure_isolated_bus
from benchmarks.limited_link import Link, limited_link
from benchmarks.report import Bar, interleaved, logs_to_stderr, note, paired_share, report
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.streams import declare_consumer, declare_stream, delete_stream
from trimtab.fabric.bus.topology import ConsumerSpec, StreamSpec
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.download import DownloadShape, download
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.spans import Producer, Span
from trimtab.fabric.wire.trajectory import Finish, Scored, Trajectory

MIB = 1024 * 1024
ROUNDS = 15
PUT_ROUNDS = 11
GET_ROUNDS = 25
LINK_ROUNDS = 3
LINK_BYTES_PER_S = 40e6
MESSAGE_BYTES = 64 * 1024
MESSAGES = 2000
WINDOW = 256
BATCH = 128
OBJECT_BYTES = 64 * MIB
DEADLINE_S = 60.0


def sample_trajectory(tokens: int, seed: int) -> Trajectory:
    """Token ids with a language's skew and logprobs of a confident model: neither random noise nor constant."""
    random = np.random.default_rng(seed)
    prompt = tokens // 8
    ids = (random.zipf(1.3, tokens) % 50_000).astype(np.int32)
    logprobs = -random.exponential(0.3, tokens - prompt).astype(np.float32)
    half = (tokens - prompt) // 2
    return Trajectory(
        trajectory_id=uuid.UUID(int=seed).hex,
        job="bench",
        policy="solver",
        role="solver",
        task_id=f"task-{seed}",
        prompt_id=f"prompt-{seed}",
        group_id=f"group-{seed}",
        group_index=0,
        group_size=8,
        outcome=Scored(reward=1.0, finish=Finish.STOP),
        token_ids=ids,
        logprobs=logprobs,
        spans=(
            Span(prompt, Producer.PROMPT),
            Span(half, Producer.MODEL, 41),
            Span(tokens - prompt - half, Producer.MODEL, 42),
        ),
        worker="worker-0",
        pool="pool",
        engine="builtin",
        started_at=1.0,
        finished_at=2.0,
    )


def plain(trajectory: Trajectory) -> dict[str, Any]:
    """What someone without our wire types would put into a dictionary."""
    fields = {name: getattr(trajectory, name) for name in trajectory.__struct_fields__}
    fields["outcome"] = {"reward": 1.0, "finish": "stop"}
    fields["spans"] = [(span.length, int(span.producer), span.version) for span in trajectory.spans]
    fields["purpose"] = "train"
    return fields


def encode_msgpack(fields: dict[str, Any]) -> bytes:
    packed = msgpack.packb(fields, default=lambda array: array.tobytes() if isinstance(array, np.ndarray) else None)
    return zstandard.ZstdCompressor(level=1).compress(packed)


def decode_msgpack(data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = msgpack.unpackb(zstandard.ZstdDecompressor().decompress(data), strict_map_key=False)
    fields["token_ids"] = np.frombuffer(fields["token_ids"], np.int32)
    fields["logprobs"] = np.frombuffer(fields["logprobs"], np.float32)
    return fields


def rate(work: Callable[[Any], Any], items: Sequence[Any], raw_bytes: int) -> float:
    """MB/s of array bytes."""
    started = time.perf_counter()
    for item in items:
        work(item)
    return raw_bytes / (time.perf_counter() - started) / 1e6


def measure_encoding() -> dict[str, Any]:
    trajectories = [sample_trajectory(4096, seed) for seed in range(200)]
    dictionaries = [plain(trajectory) for trajectory in trajectories]
    raw_bytes = sum(t.token_ids.nbytes + t.logprobs.nbytes for t in trajectories)
    frames = [encode(t) for t in trajectories]
    packed = [encode_msgpack(d) for d in dictionaries]
    pickled = [pickle.dumps(d, protocol=5) for d in dictionaries]
    rates = interleaved(
        {
            "trimtab_encode": lambda: rate(encode, trajectories, raw_bytes),
            "msgpack_zstd_encode": lambda: rate(encode_msgpack, dictionaries, raw_bytes),
            "pickle_encode": lambda: rate(lambda d: pickle.dumps(d, protocol=5), dictionaries, raw_bytes),
            "trimtab_decode": lambda: rate(lambda data: decode(data, Trajectory), frames, raw_bytes),
            "msgpack_zstd_decode": lambda: rate(decode_msgpack, packed, raw_bytes),
            "pickle_decode": lambda: rate(pickle.loads, pickled, raw_bytes),  # for comparison: never on the wire
        },
        rounds=ROUNDS,
    )
    count = len(trajectories)
    return {
        "tokens_each": 4096,
        "array_bytes_each": raw_bytes // count,
        "mb_per_s": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "bytes_each": {
            "trimtab": sum(map(len, frames)) // count,
            "msgpack_zstd": sum(map(len, packed)) // count,
            "pickle": sum(map(len, pickled)) // count,
        },
    }


class JetStreamRun:
    """One stream per measurement, so that no files are warmer than the other's."""

    def __init__(self, bus: Bus, raw: NatsClient) -> None:
        self._bus = bus
        self._raw = raw
        self._payload = os.urandom(MESSAGE_BYTES)

    async def _stream(self) -> str:
        name = f"B{uuid.uuid4().hex}"
        await declare_stream(self._bus, StreamSpec(name=name, subjects=(f"{name}.>",)), deadline_s=DEADLINE_S)
        consumer = ConsumerSpec(name="c", stream=name, max_ack_pending=MESSAGES)
        await declare_consumer(self._bus, consumer, deadline_s=DEADLINE_S)
        return name

    async def ours(self) -> tuple[float, float]:
        name = await self._stream()
        subject = f"{name}.x"
        started = time.perf_counter()
        async with WindowedPublisher(self._bus, max_messages=WINDOW, max_bytes=64 * MIB) as publisher:
            for number in range(MESSAGES):
                await publisher.publish(subject, self._payload, message_id=str(number))
        published = time.perf_counter() - started
        async with await Puller.open(self._bus, stream=name, consumer="c") as puller:
            started = time.perf_counter()
            received = 0
            while received < MESSAGES:
                for delivery in await puller.fetch(batch=BATCH, wait_s=10.0):
                    received += 1
                    await delivery.ack()
            pulled = time.perf_counter() - started
        await delete_stream(self._bus, name, deadline_s=DEADLINE_S)
        return MESSAGES / published, MESSAGES / pulled

    async def nats_py(self) -> tuple[float, float]:
        name = await self._stream()
        subject = f"{name}.x"
        context = self._raw.jetstream(publish_async_max_pending=WINDOW, timeout=DEADLINE_S)
        started = time.perf_counter()
        for number in range(MESSAGES):
            await context.publish_async(subject, self._payload, headers={"Nats-Msg-Id": str(number)})
        await context.publish_async_completed()
        published = time.perf_counter() - started
        subscription = await context.pull_subscribe_bind(consumer="c", stream=name, pending_bytes_limit=256 * MIB)
        started = time.perf_counter()
        received = 0
        while received < MESSAGES:
            for message in await subscription.fetch(BATCH, timeout=10.0):
                received += 1
                await message.ack()
        pulled = time.perf_counter() - started
        await subscription.unsubscribe()
        await delete_stream(self._bus, name, deadline_s=DEADLINE_S)
        return MESSAGES / published, MESSAGES / pulled


async def measure_bus(settings: NatsSettings) -> tuple[dict[str, Any], dict[str, Bar]]:
    password = settings.password.get_secret_value() if settings.password else None
    raw = await nats.connect(list(settings.servers), user=settings.user, password=password)
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    async with await Bus.connect(settings, name="benchmark") as bus:
        run = JetStreamRun(bus, raw)
        await run.ours()
        await run.nats_py()
        for turn in range(ROUNDS):
            contenders = [(run.ours, ours), (run.nats_py, theirs)]
            for contender, results in contenders if turn % 2 == 0 else reversed(contenders):
                results.append(await contender())
            note(f"jetstream round {turn}: ours {ours[-1]}, nats-py {theirs[-1]} messages/s")
    await raw.close()
    figures: dict[str, float] = {}
    bars: dict[str, Bar] = {}
    for index, action in enumerate(("publish", "pull")):
        mine, other = [result[index] for result in ours], [result[index] for result in theirs]
        figures[f"{action}_per_s"] = round(statistics.median(mine))
        figures[f"{action}_mb_per_s"] = round(statistics.median(mine) * MESSAGE_BYTES / 1e6, 1)
        figures[f"nats_py_{action}_per_s"] = round(statistics.median(other))
        bars[f"jetstream_{action}_share_of_nats_py"] = Bar(paired_share(mine, other), 0.85)
    return {"message_bytes": MESSAGE_BYTES, "window": WINDOW, "batch": BATCH, **figures}, bars


async def throughput(contenders: dict[str, Callable[[], Any]], *, rounds: int) -> dict[str, list[float]]:
    """MiB/s of each contender in each round, after one round that warms connections and caches."""
    results: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name in list(contenders) if turn % 2 == 0 else reversed(contenders):
            started = time.perf_counter()
            await contenders[name]()
            if turn:
                results[name].append(OBJECT_BYTES / MIB / (time.perf_counter() - started))
    note(f"objects: { {name: [round(value) for value in values] for name, values in results.items()} } MiB/s")
    return results


async def measure_objects(settings: ObjectStoreSettings) -> tuple[dict[str, Any], dict[str, Bar]]:
    def raw_client(**options: Any) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=settings.endpoint_url,
            region_name=settings.region,
            aws_access_key_id=settings.access_key_id.get_secret_value() if settings.access_key_id else None,
            aws_secret_access_key=settings.secret_access_key.get_secret_value() if settings.secret_access_key else None,
            **options,
        )

    # By default boto3 checksums what it sends and receives. We do so by other means, so the harder comparison is with a
    # boto3 that does neither; both are reported.
    no_checksums = Config(request_checksum_calculation="when_required", response_checksum_validation="when_required")
    clients = {"boto3": raw_client(), "boto3_unchecked": raw_client(config=no_checksums)}
    body = os.urandom(OBJECT_BYTES)
    shape = DownloadShape(max_bytes=OBJECT_BYTES)

    def write_whole(client: Any) -> None:
        client.put_object(Bucket=settings.bucket, Key="raw", Body=body)

    def read_whole(client: Any) -> None:
        client.get_object(Bucket=settings.bucket, Key="ours")["Body"].read()

    async with ObjectStore(settings) as store:
        puts: dict[str, Callable[[], Any]] = {
            "put": lambda: store.put("ours", body, deadline_s=DEADLINE_S),
            **{f"{name}_put": partial(asyncio.to_thread, write_whole, client) for name, client in clients.items()},
        }
        gets: dict[str, Callable[[], Any]] = {
            "get": lambda: store.get("ours", max_bytes=OBJECT_BYTES, deadline_s=DEADLINE_S),
            **{f"{name}_get": partial(asyncio.to_thread, read_whole, client) for name, client in clients.items()},
            "ranged_get": lambda: download(store, "ours", deadline_s=DEADLINE_S, shape=shape),
        }
        results = {**await throughput(puts, rounds=PUT_ROUNDS), **await throughput(gets, rounds=GET_ROUNDS)}
    for client in clients.values():
        client.close()
    results |= await measure_limited_link(settings, shape)

    figures = {f"{name}_mib_per_s": round(statistics.median(values)) for name, values in results.items()}
    figures["object_bytes"] = OBJECT_BYTES
    shares = {
        f"object_{action}_share_of_{name}": paired_share(results[action], results[f"{name}_{action}"])
        for action in ("put", "get")
        for name in clients
    }
    unchecked = {name: round(share, 4) for name, share in shares.items() if name.endswith("unchecked")}
    return {**figures, **unchecked}, {
        **{name: Bar(share, 0.9) for name, share in shares.items() if name not in unchecked},
        "object_ranged_get_share_of_boto3": Bar(paired_share(results["ranged_get"], results["boto3_get"]), 0.9),
        "limited_link_ranged_get_share_of_boto3": Bar(
            paired_share(results["limited_link_ranged_get"], results["limited_link_boto3_get"]), 1.5
        ),
    }


async def measure_limited_link(settings: ObjectStoreSettings, shape: DownloadShape) -> dict[str, list[float]]:
    """The same object where one connection is slow: what parallel ranges are for."""
    port = urlsplit(settings.endpoint_url or "").port or 0
    with limited_link(port, Link(bytes_per_s=LINK_BYTES_PER_S)) as limited_port:
        behind = settings.model_copy(update={"endpoint_url": f"http://127.0.0.1:{limited_port}"})
        client = boto3.client(
            "s3",
            endpoint_url=behind.endpoint_url,
            region_name=behind.region,
            aws_access_key_id=behind.access_key_id.get_secret_value() if behind.access_key_id else None,
            aws_secret_access_key=behind.secret_access_key.get_secret_value() if behind.secret_access_key else None,
        )

        def read_whole() -> None:
            client.get_object(Bucket=behind.bucket, Key="ours")["Body"].read()

        async with ObjectStore(behind) as store:
            results = await throughput(
                {
                    "limited_link_boto3_get": partial(asyncio.to_thread, read_whole),
                    "limited_link_ranged_get": partial(download, store, "ours", deadline_s=DEADLINE_S, shape=shape),
                },
                rounds=LINK_ROUNDS,
            )
        client.close()
    return results


def main() -> None:
    logs_to_stderr()
    encoding = measure_encoding()
    note(f"encoding: {encoding}")
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        with EmbeddedNats(Path(folder) / "nats") as server:
            bus, bus_bars = asyncio.run(measure_bus(server.settings))
        with EmbeddedNatsWithAccounts(Path(folder) / "nats-with-accounts") as accounts:
            isolation, isolation_bars = asyncio.run(measure_isolated_bus(accounts))
        with EmbeddedSeaweed(Path(folder) / "seaweedfs") as store:
            objects, object_bars = asyncio.run(measure_objects(store.settings))
    report(
        "fabric",
        {"trajectory": encoding, "jetstream": bus, "isolation": isolation, "objects": objects},
        {**bus_bars, **isolation_bars, **object_bars},
    )


if __name__ == "__main__":
    main()
