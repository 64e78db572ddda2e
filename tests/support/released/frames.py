"""A frame of every kind of message: old and new processes of one job exchange them while it is upgraded."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tests.support.fabric.wire_frames import as_tree
from tests.support.fabric.wire_specimens import SPECIMENS
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.message import Message


def write(folder: Path) -> None:
    frames = [
        {"type": type(one).__name__, "frame": base64.b64encode(encode(one)).decode(), "says": readable(one)}
        for one in SPECIMENS
    ]
    (folder / "frames.json").write_text(json.dumps(frames, indent=1) + "\n")


def readable(message: Message) -> Any:
    """Its fields as they are on the wire, in JSON."""
    return json.loads(json.dumps(as_tree(message), default=lambda body: base64.b64encode(body).decode()))
