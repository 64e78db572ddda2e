"""What a pod of the chart sees of its projected volumes, on disk."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from tests.support.chart.rendering import Object, named, of_kind


def write_projected(volume: dict[str, Any], entries: list[Object], folder: Path) -> None:
    """Writes the files of a projected volume. A Secret that the chart does not make holds its keys' names as values."""
    folder.mkdir(parents=True, exist_ok=True)
    ours = {entry["metadata"]["name"] for entry in of_kind(entries, "Secret")}
    for source in volume["projected"]["sources"]:
        if "configMap" in source:
            for key, text in named(entries, "ConfigMap", source["configMap"]["name"])["data"].items():
                (folder / key).write_text(text, encoding="utf-8")
            continue
        name = source["secret"]["name"]
        for item in source["secret"]["items"]:
            if name in ours:
                content = base64.b64decode(named(entries, "Secret", name)["data"][item["key"]], validate=True)
            else:
                content = f"{name}/{item['key']}".encode()
            target = folder / item["path"]
            assert not target.exists(), f"two sources for {item['path']}"
            target.write_bytes(content)


def volume_named(pod: Object, name: str) -> dict[str, Any]:
    (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == name]
    return dict(volume)
