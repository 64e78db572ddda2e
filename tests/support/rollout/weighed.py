"""The checksum of the weights that an engine serves: bit for bit the same, or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp

_DEADLINE_S = 60.0


class Weighed:
    """An engine process that can be asked for the checksum of its weights."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def checksum(self) -> str:
        return str((await self._post("/weights_checker", {"action": "checksum"}))["per_engine_checksum"])

    async def checksum_of(self, folder: Path) -> str:
        """By loading it whole. The engine is left with these weights."""
        await self._post("/update_weights_from_disk", {"model_path": str(folder), "weight_version": "elsewhere"})
        return await self.checksum()

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=_DEADLINE_S)
        async with (
            aiohttp.ClientSession(self._url, timeout=timeout) as http,
            http.post(path, json=body) as response,
        ):
            assert response.status == 200, await response.text()
            return dict(await response.json())
