"""The terminal view of a running job: a pure function of what the watch knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trimtab.fabric.wire.member import MemberHeartbeat, Role
from trimtab.operator.job_watch import PolicyView

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 60


def sparkline(values: Sequence[float], *, low: float, high: float, width: int = _WIDTH) -> str:
    """The values as a row of bars, the newest on the right, averaged to fit."""
    if not values:
        return ""
    columns = min(width, len(values))
    means = []
    for column in range(columns):
        part = values[len(values) * column // columns : len(values) * (column + 1) // columns]
        means.append(sum(part) / len(part))
    span = max(high - low, 1e-9)
    return "".join(_BARS[round(min(1.0, max(0.0, (mean - low) / span)) * (len(_BARS) - 1))] for mean in means)


def render(
    job: str,
    policies: Mapping[str, PolicyView],
    members: Sequence[MemberHeartbeat],
    *,
    restarts: Mapping[str, int],
    elapsed_s: float,
    max_steps: int | None,
) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for heading in ("policy", "step", "reward", "waiting", "version", "staleness", "buffered", "running", "samples/s"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    curves = []
    for name, view in policies.items():
        if not view.steps:
            table.add_row(name, *["-"] * 8)
            continue
        last = view.steps[-1]
        table.add_row(
            name,
            f"{last.step + 1}/{max_steps or '∞'}",
            f"{last.reward:.3f}",
            f"{last.wait_fraction:.0%}",
            str(view.weights.version) if view.weights else "-",
            f"{last.staleness:.1f} (max {last.max_staleness})",
            str(last.buffered),
            str(last.running),
            f"{_rate(view):.0f}",
        )
        rewards = [step.reward for step in view.steps]
        curves.append(Text(f"{name} reward {sparkline(rewards, low=min(0.0, *rewards), high=max(1.0, *rewards))}"))
    curves += [Text(f"{name} {line}") for name, view in policies.items() for line in evaluation_lines(view)]
    return Panel(
        Group(table, *curves, _pods(members, restarts)), title=f"{job} · {elapsed_s:.0f} s", title_align="left"
    )


def evaluation_lines(view: PolicyView) -> list[str]:
    """The newest result on each benchmark."""
    return [
        f"{result.benchmark} {'-' if result.score is None else f'{result.score:.3f}'}"
        f"  version {result.version}  {result.episodes} episodes"
        + (f"  {result.failed} failed" if result.failed else "")
        for result in view.evaluations.values()
    ]


def _rate(view: PolicyView) -> float:
    recent = list(view.steps)[-20:]
    elapsed = recent[-1].at - recent[0].at
    return (recent[-1].samples - recent[0].samples) / elapsed if elapsed > 0 else 0.0


def _pods(members: Sequence[MemberHeartbeat], restarts: Mapping[str, int]) -> Text:
    words = []
    for member in members:
        again = sum(count for name, count in restarts.items() if name.startswith(f"{member.member_id}/"))
        word = f"{member.member_id} {member.state}"
        if member.role is Role.ROLLOUT:
            word += f" {member.samples_per_second:.0f}/s, {member.in_flight} in flight"
        words.append(word + (f", {again} restarts" if again else ""))
    return Text("pods   " + " · ".join(words) if words else "pods   starting", style="dim")
