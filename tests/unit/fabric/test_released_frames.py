"""Messages that released versions send: this version reads them, and says the same when it passes them on."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.support.fabric.wire_specimens import SPECIMENS
from tests.support.released.folders import released
from tests.support.released.frames import readable
from trimtab.fabric.wire.envelope import decode, encode

TYPES = {type(one).__name__: type(one) for one in SPECIMENS}


@pytest.mark.parametrize("folder", released(), ids=lambda folder: folder.name)
def test_every_message_of_a_released_version_is_read(folder: Path) -> None:
    frames = json.loads((folder / "frames.json").read_text())
    assert frames
    for one in frames:
        kind = TYPES[one["type"]]
        message = decode(base64.b64decode(one["frame"]), kind)
        assert readable(message) == one["says"], one["type"]
        assert decode(encode(message), kind) == message
