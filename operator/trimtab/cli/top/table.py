"""The picture of a job as people see it: a line for each policy, a row for each pod."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.cli.chronicle.figures import clock, per_second, percent
from trimtab.cli.printable import printable
from trimtab.cli.top.picture import MemberNow, Picture, PolicyNow

_OLD_S = 10.0
_UNKNOWN = "-"
_STATES = {"ready": "green", "paused": "yellow", "draining": "yellow", "starting": "cyan", "stopping": "red"}


def rendered(picture: Picture) -> RenderableType:
    head = Text(f"{picture.job} · {len(picture.members)} pods", style="bold")
    if picture.queued is not None:
        head.append(f" · {picture.queued:,} tasks given out")
    if not picture.members:
        return Group(head, Text("no pod says anything: the job does not run, or has only begun"))
    return Group(head, _policies(picture), _members(picture))


def _policies(picture: Picture) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("policy", "step", "reward", "version", "published", "waiting", "staleness", "ready", "running"):
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for one in picture.policies:
        table.add_row(
            one.policy,
            _number(one.step),
            _UNKNOWN if one.reward is None else f"{one.reward:.3f}",
            _number(one.version),
            _UNKNOWN if one.published_s_ago is None else f"{clock(one.published_s_ago)} ago",
            _waiting(one),
            _UNKNOWN if one.staleness is None else f"{one.staleness:.1f}, at most {one.max_staleness}",
            _number(one.buffered),
            _number(one.running),
        )
    return table


def _members(picture: Picture) -> Table:
    table = Table(box=None, pad_edge=False)
    left = ("pod", "role", "state")
    headings = (*left, "in flight", "samples/s", "tokens/s", "version", "done", "failures", "heard")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    for one in picture.members:
        table.add_row(
            printable(one.member),
            _role(one),
            Text(one.state, style=_STATES.get(one.state, "")),
            _in_flight(one),
            per_second(one.samples_per_second) if one.samples_per_second else _UNKNOWN,
            per_second(one.tokens_per_second) if one.tokens_per_second else _UNKNOWN,
            _version(one),
            f"{one.completed:,}" if one.completed else _UNKNOWN,
            Text(f"{one.failures:,}", style="red") if one.failures else _UNKNOWN,
            Text(f"{clock(one.heard_s_ago)} ago", style="red" if one.heard_s_ago > _OLD_S else "dim"),
        )
    return table


def _role(one: MemberNow) -> str:
    return one.role if one.engine is None else printable(f"{one.role} {one.engine}")


def _in_flight(one: MemberNow) -> str:
    """Of what it may have, and of what it could where its weights are behind."""
    if not one.capacity:
        return _UNKNOWN
    held = "" if one.allowance == one.capacity else f" ({one.capacity})"
    return f"{one.in_flight}/{one.allowance}{held}"


def _version(one: MemberNow) -> Text:
    if not one.versions:
        return Text(_UNKNOWN)
    several = len(one.versions) > 1
    text = Text(" ".join(f"{name} {number}" if several else str(number) for name, number in one.versions.items()))
    return text.append(f" -{one.behind}", style="yellow") if one.behind else text


def _waiting(one: PolicyNow) -> str:
    if one.waiting is None:
        return _UNKNOWN
    return percent(one.waiting) + ("" if one.zone is None else f" {one.zone}")


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"
