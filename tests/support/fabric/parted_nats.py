"""Three nats-servers on a network that a test can part: one of them is then away from the two others and from everybody
but those who are beside it, and nothing says so. Connections stay open and carry nothing.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from itertools import permutations
from pathlib import Path

from tests.support.fabric.nats_cluster import ClusteredNats, NatsCluster, started
from tests.support.remote.cuttable_line import CuttableLine
from trimtab.embedded.child import Command
from trimtab.embedded.ports import LOOPBACK
from trimtab.fabric.settings import NatsSettings

_NOWHERE = f"{LOOPBACK}:1"


class PartedNats(ClusteredNats):
    """Knows the others by its own lines to them alone."""

    lines: Mapping[str, CuttableLine] = {}

    def command(self) -> Command:
        command = super().command()
        file = self.data_folder / "nats.conf"
        config = json.loads(file.read_text())
        config["cluster"]["routes"] = [f"nats://{LOOPBACK}:{line.port}" for line in self.lines.values()]
        # What servers tell one another of where the third is would go around the lines.
        config["cluster"]["advertise"] = _NOWHERE
        file.write_text(json.dumps(config))
        return command


class PartedCluster(NatsCluster):
    """`settings` are those of clients that are beside none of the servers."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder, kind=PartedNats)
        self._stack = stack
        self._between = {
            (one, other): stack.enter_context(CuttableLine(self.routes[other]))
            for one, other in permutations(self.servers, 2)
        }
        for name, server in self.servers.items():
            assert isinstance(server, PartedNats)
            server.lines = {other: line for (one, other), line in self._between.items() if one == name}
        self._to: dict[str, CuttableLine] = {}

    def open_lines(self) -> None:
        """To clients, once the servers have their ports."""
        for name, server in self.servers.items():
            self._to[name] = self._stack.enter_context(CuttableLine(server.ports["client"]))

    @property
    def settings(self) -> NatsSettings:
        if not self._to:
            return super().settings
        servers = tuple(f"nats://{LOOPBACK}:{line.port}" for line in self._to.values())
        return super().settings.model_copy(update={"servers": servers})

    def part(self, name: str) -> None:
        for line in self._lines_of(name):
            line.hang()

    def heal(self, name: str) -> None:
        for line in self._lines_of(name):
            line.mend()

    def _lines_of(self, name: str) -> list[CuttableLine]:
        return [self._to[name], *(line for pair, line in self._between.items() if name in pair)]


@asynccontextmanager
async def parted_cluster(folder: Path) -> AsyncIterator[PartedCluster]:
    with ExitStack() as lines:
        cluster = PartedCluster(folder, lines)
        async with started(cluster):
            cluster.open_lines()
            yield cluster
