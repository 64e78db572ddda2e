"""Environments that workflows are tried on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any


class Corridor:
    """Async. Three steps forward are the end; each pays a quarter, and the last one half."""

    def __init__(self) -> None:
        self._place = 0

    async def reset(self, prompt: Mapping[str, Any], /) -> str:
        await asyncio.sleep(0)
        return f"{prompt['name']}, go."

    async def step(self, action: str, /) -> tuple[str, float, bool]:
        await asyncio.sleep(0)
        self._place += action == "forward"
        return f"at {self._place}.", 0.5 if self._place == 3 else 0.25, self._place == 3


class Broken:
    """Goes wrong in the way it is told."""

    def __init__(self, *, how: str) -> None:
        self._how = how

    async def reset(self, prompt: Mapping[str, Any], /) -> str:
        return "go."

    def step(self, action: str, /) -> Any:
        if self._how == "raises":
            raise KeyError("the door")
        if self._how == "times out itself":
            raise TimeoutError("of its own")
        if self._how == "hangs":
            threading.Event().wait(5.0)
        return "only text"


class Speechless:
    def reset(self, prompt: Mapping[str, Any], /) -> str:
        return "go."


class Closed:
    """Begins with messages, and counts how often it was closed, or goes wrong then."""

    count = 0

    def __init__(self, *, how: str = "") -> None:
        self._how = how

    def reset(self, prompt: Mapping[str, Any], /) -> list[dict[str, str]]:
        return [{"role": "system", "content": "You act."}, {"role": "user", "content": "Go."}]

    def step(self, action: str, /) -> tuple[str, float, bool]:
        return "on.", 0.5, False

    async def close(self) -> None:
        if self._how == "raises":
            raise OSError("gone")
        if self._how == "hangs":
            await asyncio.sleep(60)
        Closed.count += 1
