"""Three real nats-servers on loopback that keep streams together, each with a folder and ports of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.polling import eventually
from trimtab.embedded.child import Command
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.ports import LOOPBACK, free_ports
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.jetstream_api import Json, api_call
from trimtab.fabric.settings import NatsSettings


class ClusteredNats(EmbeddedNats):
    """One of several."""

    def __init__(self, folder: Path, *, server: str, password: str, routes: Mapping[str, int]) -> None:
        super().__init__(folder)
        self.server = server
        self._shared_password = password
        self._routes = routes

    def _load_identity(self) -> None:
        super()._load_identity()
        self.password = self._shared_password

    def command(self) -> Command:
        command = super().command()
        file = self.data_folder / "nats.conf"
        config = json.loads(file.read_text())
        config["server_name"] = self.server
        config["cluster"] = {
            "name": "three",
            "listen": f"{LOOPBACK}:{self._routes[self.server]}",
            "routes": [f"nats://{LOOPBACK}:{port}" for name, port in self._routes.items() if name != self.server],
            "no_advertise": True,
        }
        file.write_text(json.dumps(config))
        return command


class NatsCluster:
    def __init__(self, folder: Path, *, kind: type[ClusteredNats] = ClusteredNats) -> None:
        names = ("n0", "n1", "n2")
        self.routes = dict(zip(names, free_ports(len(names)), strict=True))
        self.servers = {
            name: kind(folder / name, server=name, password="of-all-three", routes=self.routes) for name in names
        }

    @property
    def settings(self) -> NatsSettings:
        first, *others = [server.settings for server in self.servers.values()]
        return first.model_copy(update={"servers": (*first.servers, *(one.servers[0] for one in others))})

    async def leader_of(self, bus: Bus, stream: str) -> str | None:
        """None while there is none, or nobody says so."""
        return (await self._cluster_of(bus, stream) or {}).get("leader")

    async def replicas_of(self, bus: Bus, stream: str) -> list[Json] | None:
        """What the leader says of the others; None while there is none, or nobody says so."""
        found = await self._cluster_of(bus, stream)
        return None if found is None else found.get("replicas", [])

    async def _cluster_of(self, bus: Bus, stream: str) -> Json | None:
        try:
            info = await api_call(bus, f"STREAM.INFO.{stream}", deadline_s=2.0)
        except BusError:
            return None
        return info.get("cluster")

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()


@asynccontextmanager
async def nats_cluster(folder: Path, *, kind: type[ClusteredNats] = ClusteredNats) -> AsyncIterator[NatsCluster]:
    cluster = NatsCluster(folder, kind=kind)
    async with started(cluster):
        yield cluster


@asynccontextmanager
async def started(cluster: NatsCluster) -> AsyncIterator[None]:
    """Ready when streams with three replicas can be made."""
    try:
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in cluster.servers.values()))
        async with await Bus.connect(cluster.settings, name="cluster") as bus:

            async def takes_streams() -> bool:
                try:
                    await api_call(
                        bus,
                        "STREAM.CREATE.READY",
                        {"name": "READY", "subjects": ["ready"], "num_replicas": 3, "storage": "file"},
                        deadline_s=5.0,
                    )
                except BusError:
                    return False
                return True

            await eventually(takes_streams, timeout_s=60.0)
            await api_call(bus, "STREAM.DELETE.READY", deadline_s=30.0)
        yield
    finally:
        await asyncio.to_thread(cluster.stop)
