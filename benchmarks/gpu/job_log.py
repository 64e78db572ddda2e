"""Reads what a job's pods logged: when each version was trained, published and served, and what its step was like."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any


@dataclass(frozen=True, kw_only=True)
class JobLog:
    """Events in the order of time, each with its Unix time under `at`."""

    events: Sequence[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> JobLog:
        found = [event for file in sorted(folder.glob("*.log")) for event in _lines(file)]
        return cls(events=sorted(found, key=lambda event: float(event["at"])))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("event") == name]

    def steps_s(self, *, warm_up: int) -> list[float]:
        """From one step's end to the next one's."""
        ends = [float(event["at"]) for event in self.named("step")][warm_up:]
        return [later - earlier for earlier, later in itertools.pairwise(ends)]

    def busy_s(self, *, warm_up: int) -> list[float]:
        """Of each of those, what was not spent waiting for samples."""
        waited = [float(event["waited_s"]) for event in self.named("step")][warm_up + 1 :]
        return [whole - part for whole, part in zip(self.steps_s(warm_up=warm_up), waited, strict=True)]

    def mean(self, measure: str, *, warm_up: int) -> float | None:
        values = [event[measure] for event in self.named("step")[warm_up:] if event.get(measure) is not None]
        return fmean(values) if values else None

    def publication(self) -> dict[str, float]:
        """Medians over the versions after the first: from the end of its step to its publication and to its being
        served; of that, what fetching, decoding and the whole refresh took; the pause for it, and its bytes.
        """
        trained = {int(event["step"]) + 1: float(event["at"]) for event in self.named("step")}
        published = {int(event["version"]): event for event in self.named("weights_published") if event["version"]}
        served = {int(event["version"]): event for event in self.named("weights_swapped") if event["version"]}
        both = [version for version in published if version in served and version in trained]
        if not both:
            return {}
        prepared = {int(event["version"]): event for event in self.named("weights_prepared")}
        return {
            "publish_s": median(published[version]["at"] - trained[version] for version in both),
            "served_s": median(served[version]["at"] - trained[version] for version in both),
            "fetch_s": median(prepared[version]["fetch_s"] for version in both if version in prepared),
            "decode_s": median(prepared[version]["decode_s"] for version in both if version in prepared),
            "refresh_s": median(served[version]["refresh_s"] for version in both),
            "pause_s": median(served[version]["pause_s"] for version in both),
            "bytes": median(published[version]["bytes"] for version in both),
            "versions": len(both),
        }


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("{"):
            try:
                event = json.loads(line)
                event["at"] = datetime.fromisoformat(event["timestamp"]).timestamp()
            except (ValueError, KeyError):
                continue  # a line of some library, or one that was cut
            yield event
