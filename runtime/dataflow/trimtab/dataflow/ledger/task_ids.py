"""Names of tasks and groups. They are numbers in disguise, so that what is settled can be remembered as a number."""

from __future__ import annotations

import re

_TASK = re.compile(r"t(0|[1-9][0-9]{0,17})")
_GROUP = re.compile(rf"{_TASK.pattern}\.([a-z0-9-]+)")


def task_id(number: int) -> str:
    return f"t{number}"


def parse_task_id(task_id: str) -> int | None:
    """Number of a task; None for an id that no task of ours has."""
    match = _TASK.fullmatch(task_id)
    return None if match is None else int(match[1])


def parse_group_id(group_id: str) -> tuple[int, str] | None:
    """Task number and role of a group; None for an id that no task of ours can have led to."""
    match = _GROUP.fullmatch(group_id)
    return None if match is None else (int(match[1]), match[2])


def task_number(group_id: str) -> int:
    """Of a group that is in the books: no other id gets into them."""
    place = parse_group_id(group_id)
    assert place is not None
    return place[0]
