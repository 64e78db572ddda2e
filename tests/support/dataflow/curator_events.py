"""What a curator hears of over a run, to be fed to one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from tests.support.dataflow.finished_groups import finished
from trimtab.dataflow.curators.contract import Curator

EASY, HARD, MIXED = (1.0, 1.0), (0.0, 0.0), (0.0, 1.0)


def events(seed: int, count: int) -> Iterator[tuple[str, Any]]:
    rng = np.random.default_rng(seed)
    for number in range(count):
        if number % 17 == 16:
            yield "stepped", (("solver", "judge")[number % 2], number // 17)
        else:
            policy = ("solver", "judge")[int(rng.integers(2))]
            rewards = (EASY, HARD, MIXED)[int(rng.integers(3))]
            yield "observe", (finished(f"p{rng.integers(40)}", rewards, policy=policy, role=policy),)


def feed(curator: Curator, happened: list[tuple[str, Any]]) -> None:
    for method, arguments in happened:
        getattr(curator, method)(*arguments)


def through_the_ledger(state: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(state))
    return kept
