"""Runs in the sandbox: starts an MCP server, shakes hands with it, asks one thing and writes the answer to a file.

It needs nothing but Python's own library, as the sandbox has nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

_PROTOCOL = "2025-06-18"


class Failed(Exception):
    """The server ended, or said what is not of the protocol."""


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    server = subprocess.Popen(asked["command"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        answer = conversed(server, asked)
    except (Failed, OSError) as error:
        answer = {"failed": str(error)}
    finally:
        server.kill()
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


def conversed(server: subprocess.Popen[bytes], asked: dict[str, Any]) -> dict[str, Any]:
    assert server.stdin is not None
    assert server.stdout is not None
    client = {"name": "trimtab", "version": "1"}
    hello = {"protocolVersion": _PROTOCOL, "capabilities": {}, "clientInfo": client}
    began = request(server.stdin, server.stdout, 1, "initialize", hello)
    if "error" in began:
        raise Failed(f"initialize: {began['error']}")
    send(server.stdin, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    if "list" in asked:
        return request(server.stdin, server.stdout, 2, "tools/list", {})
    call = {"name": asked["call"], "arguments": asked["arguments"]}
    return request(server.stdin, server.stdout, 2, "tools/call", call)


def request(to: IO[bytes], of: IO[bytes], number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The answer with its number. What a server says besides, such as what it logs, is passed over."""
    send(to, {"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    for line in of:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict) and message.get("id") == number and "method" not in message:
            return message
    raise Failed(f"it ended before it answered {method}")


def send(to: IO[bytes], message: dict[str, Any]) -> None:
    to.write(json.dumps(message).encode() + b"\n")
    to.flush()


if __name__ == "__main__":
    main()
