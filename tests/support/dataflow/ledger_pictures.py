"""All that a ledger knows, in a form that compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.stage_books import StageBooks
from trimtab.dataflow.ledger.stream_books import StreamBooks
from trimtab.dataflow.ledger.trainer_books import TrainerBooks
from trimtab.dataflow.outcomes import GroupOutcome


def picture(books: Ledger) -> dict[str, Any]:
    return {
        "issued": books.issued,
        "newest": books.newest_tasks,
        "position": (books.next_position, list(books.newest_positions)),
        "capacity": books.capacity_tasks(),
        "streams": {name: _stream(stream) for name, stream in books.streams.items()},
        "trainers": {name: _trainer(trainer) for name, trainer in books.trainers.items()},
        "stages": _stages(books.stages),
    }


def _stages(one: StageBooks) -> dict[str, Any]:
    return {
        "staged": {
            policy: {
                group_id: (staged.group, staged.said, staged.refused, staged.first_column)
                for group_id, staged in own.items()
            }
            for policy, own in one.staged.items()
        },
        "counts": (one.answered.done, one.answered.failed, one.last_sequence),
        "waiting": {stage: one.waiting(stage) for stage in one.graph.stages},
    }


def _stream(one: StreamBooks) -> dict[str, Any]:
    return {
        "counts": _counts(one),
        "arriving": {
            key: (partial.first_sequence, sorted(partial.closed), partial.open_rows())
            for key, partial in one.arriving.items()
        },
        "unfiltered": list(one.unfiltered),
        "ended": one.ended.state(),
    }


def _trainer(one: TrainerBooks) -> dict[str, Any]:
    return {
        "counts": _counts(one),
        "buffers": {name: list(buffer) for name, buffer in one.buffers.items()},
        "pool": list(one.pool),
        "granted": one.granted,
        "rewards": list(one.rewards),
        "times": one.times.by_step,
    }


def _counts(books: StreamBooks | TrainerBooks) -> dict[str, Any]:
    return {name: value for name, value in vars(books).items() if isinstance(value, int | str | None)}


@dataclass
class Witnessed:
    """Writes down what a curator would learn."""

    told: list[str] = field(default_factory=list)

    def observe(self, outcome: GroupOutcome) -> None:
        self.told.append(f"{outcome.policy}/{outcome.role}/{outcome.prompt_id}/{outcome.rewards}")

    def stepped(self, policy: str, step: int) -> None:
        self.told.append(f"{policy}/{step}")

    def state(self) -> dict[str, Any]:
        return {"told": self.told}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.told = list(state["told"])
