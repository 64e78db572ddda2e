"""Random objects through the real decoders, caches, controller and reconcilers: no task ends, and others have their
turn. The API server behind them does not answer, so what is made of an object ends at the first write; what a real one
takes is sent through all of it in tests/cluster/operator/test_hostile_storm.py.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import msgspec
import pytest
import structlog

from tests.support.operator.hostile import any_value, hostile, sound
from tests.support.operator.scene import tiny_job
from tests.support.sizes import Sizes
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.tls import ClientTls
from trimtab.kube.access import ClusterAccess
from trimtab.kube.bounded_response import OTHERS_SERVER, checked, decoded
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError, Unreachable
from trimtab.kube.events import EventRecorder
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import CONFIG_MAPS, PODS, RLJOBS, ROLLOUT_POOLS, TRAINERS, Object, Resource, key_of
from trimtab.operator.autoscale.agent.egress import Egress
from trimtab.operator.autoscale.agent.maintainer import AgentMaintainers, KeyMissing
from trimtab.operator.autoscale.agent.transcripts import TranscriptFolder
from trimtab.operator.metrics import OperatorMetrics
from trimtab.operator.reconcile.cluster import Cluster, Result, WorkKey
from trimtab.operator.reconcile.controller import RECONCILERS, Controller, Reconcile
from trimtab.operator.reconcile.job_buses import SharedBus
from trimtab.operator.reconcile.job_watches import JobWatches
from trimtab.operator.remote.kubeconfig import KubeConfigRefused, read_kubeconfig
from trimtab.operator.remote.links import Links
from trimtab.operator.remote.pool import RemotePoolReconciler
from trimtab.operator.running import made_cluster
from trimtab.operator.settings import OperatorSettings

KINDS = {resource.kind: resource for resource in (RLJOBS, ROLLOUT_POOLS, TRAINERS, PODS, CONFIG_MAPS)}
GOOD = WorkKey("RLJob", "good", "tiny")
_NAMESPACES, _NAMES = 20, 10
_LONGEST_WAIT_S = 1.0


def _silent_server() -> tuple[socket.socket, ClusterAccess]:
    """Bound and not listening: every dial is refused at once."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held, ClusterAccess(server=f"https://127.0.0.1:{held.getsockname()[1]}", tls=ClientTls())


class _Storm:
    """An operator in this process. `takes` is what a watch would bring."""

    def __init__(self, client: KubeClient, folder: Path) -> None:
        settings = OperatorSettings.model_validate(
            {
                "nats": {"servers": ["nats://127.0.0.1:1"]},
                "shared_nats_account": "all-pods-trust-one-another",
                "object_store": {"bucket": "b", "region": "r"},
                "images": "image",
                "job_network": {},
                "namespaces": (),
            }
        )
        metrics = OperatorMetrics(Metrics())
        links = Links(client, settings=settings.remote, installation="op", metrics=metrics)
        self.remote = RemotePoolReconciler(links)

        async def no_key(namespace: str, where: object) -> str:
            raise KeyMissing("none")

        self.cluster: Cluster = made_cluster(
            settings,
            client,
            events=EventRecorder(client, component="c", instance="i", clock=time.time),
            watches=JobWatches(SharedBus(settings.nats), interval_s=60.0),
            maintainers=AgentMaintainers(
                read_key=no_key,
                transcripts=TranscriptFolder(folder, newest=1),
                on_reply=lambda key, reply: None,
                egress=Egress(),
            ),
            remote=self.remote,
            mint=None,
            key_root=None,
        )
        self.good_began: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.reconciles = 0
        self.controller = Controller(self.cluster, metrics, reconcilers=self._counted())
        caches = (
            self.cluster.jobs,
            self.cluster.pools,
            self.cluster.trainers,
            self.cluster.pods,
            self.cluster.config_maps,
        )
        self._reflectors: dict[str, Reflector] = {cache.resource.kind: cache.reflectors[0] for cache in caches}

    def _counted(self) -> Mapping[str, Reconcile]:
        def counted(reconcile: Reconcile) -> Reconcile:
            async def run(cluster: Cluster, key: WorkKey) -> Result:
                self.reconciles += 1
                if key == GOOD and not self.good_began.done():
                    self.good_began.set_result(time.thread_time())
                return await reconcile(cluster, key)

            return run

        return MappingProxyType({kind: counted(reconcile) for kind, reconcile in RECONCILERS.items()})

    def takes(self, resource: Resource, item: Object) -> None:
        self._reflectors[resource.kind].replay(key_of(item), item)

    async def wait_of_the_good_one(self) -> float:
        """Of the processor's time, which does not depend on what else the machine does."""
        self.good_began = asyncio.get_running_loop().create_future()
        asked = time.thread_time()
        self.controller.wake("RLJob", GOOD.key)
        async with asyncio.timeout(120):
            return await self.good_began - asked


@pytest.fixture
def faults() -> Iterator[list[str]]:
    """What was logged as a fault of ours, and by which line; all other lines are left out, which are very many."""
    found: list[str] = []

    def note(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if event.get("exc_info"):
            kind, _, trace = sys.exc_info()
            place = traceback.extract_tb(trace)[-1]
            found.append(f"{event['event']}: {kind.__name__ if kind else ''} at {place.name}: {place.line}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[note])
    yield found
    structlog.configure(**before)


async def test_no_object_ends_a_task_or_holds_up_another(sizes: Sizes, tmp_path: Path, faults: list[str]) -> None:
    rng, waits, refused, taken = random.Random(7), [0.0], 0, 0
    held, access = _silent_server()
    with held:
        async with KubeClient(access, deadline_s=0.001) as client:
            storm = _Storm(client, tmp_path)
            tasks = [
                asyncio.create_task(storm.controller.run()),
                asyncio.create_task(storm.remote.run(storm.cluster.pools)),
            ]
            good = {**sound("RLJob", namespace="good", name="tiny", version=1), "spec": tiny_job()["spec"]}
            storm.takes(RLJOBS, good)
            for number in range(sizes.hostile_objects):
                kind = rng.choice(tuple(KINDS))
                place, name = f"tenant-{rng.randrange(_NAMESPACES)}", f"bad-{rng.randrange(_NAMES)}"
                item = hostile(rng, sound(kind, namespace=place, name=name, version=number + 2))
                try:
                    item = checked(await decoded(msgspec.json.encode(item), call="watch"), call="watch")
                except Unreachable:
                    refused += 1
                    continue
                taken += 1
                storm.takes(KINDS[kind], item)
                if number % 50 == 0:
                    waits.append(await storm.wait_of_the_good_one())
                    ended = [task for task in tasks if task.done()]
                    assert not ended, ended
            waits.append(await storm.wait_of_the_good_one())
            assert not any(task.done() for task in tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert taken > sizes.hostile_objects / 3, "most were refused at the door"
    assert storm.reconciles > taken / 20
    assert max(waits) < _LONGEST_WAIT_S, sorted(waits)[-5:]
    # Objects beyond the schema of the API server may fault their own reconcile; sound decoders meet most of them.
    assert len(faults) < taken / 5, Counter(faults).most_common(10)


async def test_no_answer_of_a_server_is_met_with_anything_but_our_own_errors(sizes: Sizes) -> None:
    rng = random.Random(11)
    for number in range(sizes.hostile_objects // 10):
        item = sound(rng.choice(tuple(KINDS)), namespace="n", name="a", version=number + 1)
        body = msgspec.json.encode(hostile(rng, item) if rng.random() < 0.8 else any_value(rng))
        cut = body[: rng.randrange(len(body) + 1)] if rng.random() < 0.2 else body
        try:
            checked(await decoded(cut, call="c"), call="c")
        except KubeError:
            continue


def test_no_kubeconfig_is_met_with_anything_but_a_refusal(sizes: Sizes) -> None:
    rng = random.Random(13)
    pieces = (
        "apiVersion: v1\n", "clusters:\n", "- name: a\n", "  cluster: {server: 'https://a'}\n", "users: []\n",
        "&a ", "*a", "<<: ", "!!python/x ", "{", "}", "[", "]", "- ", "? ", ": ", "\n", "'", '"', "|", "%YAML 9\n",
        "---\n", "\t", "\x00", "é",
    )  # fmt: skip
    for _ in range(sizes.hostile_objects // 10):
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 40)))
        with pytest.raises(KubeConfigRefused):
            read_kubeconfig(text.encode())


def test_the_limits_of_others_are_tighter() -> None:
    own = KubeClient(cast(ClusterAccess, None)).limits
    assert OTHERS_SERVER.answer_bytes < own.answer_bytes
    assert OTHERS_SERVER.objects < own.objects
