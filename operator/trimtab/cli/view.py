"""The terminal view of a running job: a pure function of what the watch knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trimtab.api.job import PoolStatus
from trimtab.fabric.wire.member import MemberHeartbeat, Role
from trimtab.operator.job_watch import PolicyView

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 60
_COLUMNS = (
    "policy", "step", "reward", "waiting", "version", "weights", "staleness", "buffered", "running", "samples/s",
)  # fmt: skip


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
    pools: Sequence[PoolStatus],
    *,
    activity: str,
    restarts: Mapping[str, int],
    failing: Mapping[str, str],
    elapsed_s: float,
    max_steps: int | None,
) -> RenderableType:
    """`failing` has the ends of the logs of containers that died a short while ago."""
    table = Table(box=None, pad_edge=False)
    for heading in _COLUMNS:
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    curves = []
    for name, view in policies.items():
        if not view.steps:
            table.add_row(name, *["-"] * (len(_COLUMNS) - 1))
            continue
        last = view.steps[-1]
        table.add_row(
            name,
            f"{last.step + 1}/{max_steps or '∞'}",
            f"{last.reward:.3f}",
            f"{last.wait_fraction:.0%}",
            str(view.weights.version) if view.weights else "-",
            decimal(view.weights.size_bytes) if view.weights else "-",
            f"{last.staleness:.1f} (max {last.max_staleness})",
            str(last.buffered),
            str(last.running),
            f"{_rate(view):.0f}",
        )
        rewards = [step.reward for step in view.steps]
        curves.append(Text(f"{name} reward {sparkline(rewards, low=min(0.0, *rewards), high=max(1.0, *rewards))}"))
    curves += [Text(f"{name} {line}") for name, view in policies.items() for line in evaluation_lines(view)]
    troubles = [Text(f"{name} died:\n{tail}", style="red") for name, tail in failing.items()]
    return Panel(
        Group(table, *curves, _pools(pools, members), _pods(members, restarts), *troubles),
        title=f"{job} · {elapsed_s:.0f} s · {activity}",
        title_align="left",
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


def _pools(pools: Sequence[PoolStatus], members: Sequence[MemberHeartbeat]) -> Text:
    words = []
    for pool in pools:
        tokens = sum(member.tokens_per_second for member in members if member.pool == pool.name)
        words.append(f"{pool.name} {pool.ready_replicas} of {pool.desired_replicas}, {tokens:,.0f} tokens/s")
    return Text("pools  " + " · ".join(words), style="dim")


def _pods(members: Sequence[MemberHeartbeat], restarts: Mapping[str, int]) -> Text:
    words = []
    for member in members:
        again = sum(count for name, count in restarts.items() if name.startswith(f"{member.member_id}/"))
        word = f"{member.member_id} {member.state}"
        if member.role is Role.ROLLOUT:
            word += f" {member.samples_per_second:.0f}/s, {member.in_flight} in flight"
        words.append(word + (f", {again} restarts" if again else ""))
    return Text("pods   " + " · ".join(words) if words else "pods   starting", style="dim")
