"""The groups of a job as their samples arrived."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from trimtab.fabric.wire.header import TrajectoryHeader

Groups = dict[str, list[TrajectoryHeader]]
"""Samples by group; of those that arrived twice the first."""


def first_arrivals(headers: Sequence[TrajectoryHeader]) -> Groups:
    groups: Groups = defaultdict(list)
    seen = set()
    for header in headers:
        if header.benchmark is None and place(header) not in seen:
            seen.add(place(header))
            groups[header.group_id].append(header)
    return groups


def deadlines(headers: Sequence[TrajectoryHeader]) -> dict[str, dict[str, tuple[int, int]]]:
    """By policy, complete groups that can be trained, in the order in which they became complete: the version of the
    oldest token, and the place of the last sample in the stream.
    """
    arrived: dict[tuple[str, str], dict[int, TrajectoryHeader]] = defaultdict(dict)
    found: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for position, header in enumerate(headers):
        samples = arrived[header.policy, header.group_id]
        if header.benchmark is not None or header.group_index in samples:
            continue
        samples[header.group_index] = header
        if len(samples) == header.group_size and all(one.error is None for one in samples.values()):
            versions = [one.oldest_version for one in samples.values() if one.oldest_version is not None]
            if len(versions) == header.group_size:
                found[header.policy][header.group_id] = min(versions), position
    return found


def place(header: TrajectoryHeader) -> tuple[str, str, int]:
    return header.policy, header.group_id, header.group_index


def oldest_token(samples: Sequence[TrajectoryHeader]) -> int | None:
    return min((header.oldest_version for header in samples if header.oldest_version is not None), default=None)
