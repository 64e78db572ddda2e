"""Ranks as processes of their own, forked from one that has imported what they need: a group takes a second."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tests.chaos.template_process import TemplateProcess
from tests.polling import eventually

_TIMEOUT_S = 120.0


def prepare() -> None:
    """Importing this module's users takes the time. Nothing may be computed here: what a backward pass or a process
    group starts does not survive a fork.
    """


async def run_ranks(template: TemplateProcess, work: Callable[..., None], *arguments: Any, world_size: int) -> None:
    """`work(*arguments, rank)` in each; fails when any of them does."""
    for pid in [template.start(work, *arguments, rank) for rank in range(world_size)]:
        endings: list[int] = []

        def ended(pid: int = pid, endings: list[int] = endings) -> bool:
            ending = template.ended(pid)
            endings.extend([] if ending is None else [ending])
            return ending is not None

        await eventually(ended, timeout_s=_TIMEOUT_S)
        assert os.waitstatus_to_exitcode(endings[0]) == 0, "a rank failed; its traceback is above"
