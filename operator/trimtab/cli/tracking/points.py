"""What a tracker is told of each record of a run's history: numbers by name, at a step of a policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trimtab.cli.chronicle.records import Died, Fleet, Measured, Record, Rescaled, Score, Step, Version, Window
from trimtab.cli.chronicle.spending import NOTHING, Spending

_NONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Point:
    """Values that belong together. Names have slashes, which trackers group by."""

    at: float
    step: int
    values: Mapping[str, float]
    note: str = ""
    """In words, for trackers that take texts."""


class Points:
    """Records in the order of the history. What has no step of its own is told at the newest that was heard of."""

    def __init__(self, *, newest: int = 0, spending: Spending = NOTHING) -> None:
        self.newest = newest
        self.spending = spending

    def of(self, record: Record) -> Iterator[Point]:
        self.spending = self.spending.after(record)
        match record:
            case Step():
                self.newest = max(self.newest, record.step)
                spent = {} if self.spending.per_hour is None else {"fleet/cost": self.spending.total}
                parts = {f"reward_parts/{name}": value for name, value in record.reward_parts.items()}
                yield self._of_policy(
                    record.policy,
                    record.at,
                    record.step,
                    {
                        "reward": record.reward,
                        "staleness": record.staleness,
                        "waiting": record.waiting,
                        "samples": record.samples,
                        "buffered": record.buffered,
                        "running": record.running,
                        **parts,
                        **_present(length=record.length, truncated=record.truncated, tokens=record.tokens or None),
                    },
                    besides=spent,
                )
            case Measured():
                values = {f"trainer/{name}": value for name, value in record.values.items()}
                values["trainer/tokens_per_second"] = record.tokens_per_second
                # It counts steps made; other records count from the first.
                yield self._of_policy(record.policy, record.at, max(0, record.step - 1), values)
            case Window():
                yield self._of_policy(record.policy, record.at, record.last_step, {"window/waiting": record.waiting})
            case Version():
                values = {"weights/bytes": record.size, "weights/is_delta": float(record.base is not None)}
                yield self._of_policy(record.policy, record.at, record.version, values)
            case Score():
                values = {f"evaluation/{record.benchmark}/episodes": float(record.episodes)}
                values[f"evaluation/{record.benchmark}/failed"] = float(record.failed)
                if record.score is not None:
                    values[f"evaluation/{record.benchmark}/score"] = record.score
                yield self._of_policy(record.policy, record.at, record.version, values)
            case Fleet():
                ready = {f"fleet/{pool}/ready": float(count) for pool, count in record.ready.items()}
                wanted = {f"fleet/{pool}/wanted": float(count) for pool, count in record.wanted.items()}
                cost = _present(**{"fleet/cost_per_hour": record.cost_per_hour})
                yield Point(at=record.at, step=self.newest, values=ready | wanted | cost)
            case Rescaled():
                note = f"{record.before} → {record.after}: {record.reason}: {record.message}"
                yield Point(at=record.at, step=self.newest, values={"fleet/decided": float(record.after)}, note=note)
            case Died():
                note = f"{record.pod}: {record.why}"
                yield Point(at=record.at, step=self.newest, values={"trainer_restarts": 1.0}, note=note)

    def _of_policy(
        self, policy: str, at: float, step: int, values: Mapping[str, float], *, besides: Mapping[str, float] = _NONE
    ) -> Point:
        own = {f"{policy}/{name}": float(value) for name, value in values.items()}
        return Point(at=at, step=step, values={**own, **besides})


def _present(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
