"""Models that have no way of their own to write a call: all is text, but for the thoughts."""

from __future__ import annotations

from trimtab.rollout.gateway.parsing.reader import Called


class NoCalls:
    opening = ""
    closing: str | None = None
    only_first = False

    def read(self, body: str) -> tuple[Called, ...] | None:
        return None
