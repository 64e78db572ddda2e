"""Searches a corpus or asks an endpoint."""

from __future__ import annotations

from trimtab.rollout.search.passages import Search, shown
from trimtab.rollout.tools.tool import Bench, shortened


class SearchTool:
    def __init__(self, search: Search) -> None:
        self._search = search

    async def description(self, bench: Bench, /) -> str:
        return "searches for words and tells the passages that fit best"

    async def use(self, given: str, bench: Bench, /) -> str:
        return shortened(shown(await self._search.find(given)))
