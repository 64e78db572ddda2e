"""A job at one moment, put together from what its parts last said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from trimtab.fabric.wire.balance import BalanceReport
from trimtab.fabric.wire.member import MemberHeartbeat, Role
from trimtab.fabric.wire.progress import StepProgress
from trimtab.fabric.wire.weights import WeightPointer

_ORDER = {Role.TRAINER: 0, Role.DATAFLOW: 1, Role.ROLLOUT: 2}


class PolicyNow(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. What nobody has said yet is None."""

    policy: str
    step: int | None = None
    """Steps granted, this one included."""
    reward: float | None = None
    version: int | None = None
    """The newest weights."""
    published_s_ago: float | None = None
    waiting: float | None = None
    """Share of its time for which the trainer waits for samples."""
    zone: str | None = None
    staleness: float | None = None
    max_staleness: int | None = None
    buffered: int | None = None
    """Samples that wait for the trainer."""
    running: int | None = None
    """Samples in the making."""


class MemberNow(msgspec.Struct, frozen=True, kw_only=True):
    """One pod, or of a trainer one rank that leads its pod."""

    member: str
    role: str
    pool: str | None = None
    engine: str | None = None
    state: str
    in_flight: int = 0
    allowance: int = 0
    """Tasks that it may have now."""
    capacity: int = 0
    samples_per_second: float = 0.0
    tokens_per_second: float = 0.0
    versions: Mapping[str, int] = {}
    behind: int = 0
    """Versions by which it is behind in the policy where it is furthest."""
    completed: int = 0
    failures: int = 0
    heard_s_ago: float


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    queued: int | None
    """Tasks that are given out and not settled."""
    policies: tuple[PolicyNow, ...]
    members: tuple[MemberNow, ...]


def picture_of(
    job: str,
    *,
    members: Iterable[MemberHeartbeat],
    progress: Mapping[str, StepProgress],
    reports: Mapping[str, BalanceReport],
    weights: Mapping[str, WeightPointer],
    queued: int | None,
    now: float,
) -> Picture:
    newest = {policy: pointer.version for policy, pointer in weights.items()}
    names = sorted({*progress, *reports, *weights})
    return Picture(
        job=job,
        queued=queued,
        policies=tuple(
            _policy(name, progress.get(name), reports.get(name), weights.get(name), now=now) for name in names
        ),
        members=tuple(
            _member(one, newest, now=now)
            for one in sorted(members, key=lambda one: (_ORDER[one.role], one.pool or "", one.member_id))
        ),
    )


def _policy(
    name: str,
    progress: StepProgress | None,
    report: BalanceReport | None,
    pointer: WeightPointer | None,
    *,
    now: float,
) -> PolicyNow:
    found = PolicyNow(policy=name)
    if progress is not None:
        found = msgspec.structs.replace(
            found,
            step=progress.step + 1,
            reward=progress.reward,
            waiting=progress.wait_fraction,
            staleness=progress.staleness,
            max_staleness=progress.max_staleness,
            buffered=progress.buffered,
            running=progress.running,
        )
    if report is not None:
        found = msgspec.structs.replace(found, zone=str(report.branch))
    if pointer is not None:
        found = msgspec.structs.replace(
            found, version=pointer.version, published_s_ago=max(0.0, now - pointer.published_at)
        )
    return found


def _member(one: MemberHeartbeat, newest: Mapping[str, int], *, now: float) -> MemberNow:
    # A trainer's version is the one that it makes, which is ahead of what it has published.
    behind = 0 if one.role is not Role.ROLLOUT else max(
        (newest.get(policy, version) - version for policy, version in one.versions.items()), default=0
    )  # fmt: skip
    return MemberNow(
        member=one.member_id,
        role=str(one.role),
        pool=one.pool,
        engine=one.engine,
        state=str(one.state),
        in_flight=one.in_flight,
        allowance=one.capacity if one.allowance is None else one.allowance,
        capacity=one.capacity,
        samples_per_second=one.samples_per_second,
        tokens_per_second=one.tokens_per_second,
        versions=dict(one.versions),
        behind=max(0, behind),
        completed=one.completed,
        failures=sum(one.failures.values()),
        heard_s_ago=max(0.0, now - one.sent_at),
    )
