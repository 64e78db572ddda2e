"""A real nats-server that also tells how many bytes went over each connection."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass, replace
from typing import Any

from trimtab.embedded.child import Command
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.ports import LOOPBACK, free_ports

_DEADLINE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bodies and headers of messages, both ways, as the server counts them: without the protocol's own lines."""

    count: int
    size: int

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(count=self.count - earlier.count, size=self.size - earlier.size)


class MonitoredNats(EmbeddedNats):
    """The embedded server with its monitoring port open on loopback."""

    _monitor = 0

    def command(self) -> Command:
        plain = super().command()
        (self._monitor,) = free_ports(1)
        return replace(plain, arguments=[*plain.arguments, "--http_port", str(self._monitor)])

    def traffic(self, connection: str) -> Traffic:
        """Of the connections with this name, which the client gave itself."""
        found = [entry for entry in self._connections() if entry.get("name") == connection]
        if not found:
            raise LookupError(f"nats-server has no connection called {connection!r}: its process is gone or not up yet")
        return Traffic(
            count=sum(entry["in_msgs"] + entry["out_msgs"] for entry in found),
            size=sum(entry["in_bytes"] + entry["out_bytes"] for entry in found),
        )

    def listens(self, subject: str) -> bool:
        """Whether some client has subscribed to exactly this subject."""
        return any(subject in entry.get("subscriptions_list", ()) for entry in self._connections())

    def _connections(self) -> list[dict[str, Any]]:
        url = f"http://{LOOPBACK}:{self._monitor}/connz?limit=8192&subs=1"
        with urllib.request.urlopen(url, timeout=_DEADLINE_S) as answer:
            connections: list[dict[str, Any]] = json.load(answer)["connections"]
        return connections
