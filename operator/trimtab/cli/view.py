"""The terminal view of a running job: a pure function of its story so far and of what its pods say. Curves are made of
block characters, as wide as the cell they are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.filesize import decimal
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trimtab.cli.chronicle.figures import clock, per_second, percent
from trimtab.cli.chronicle.records import LEARNING_RATE, Began, Died, Rescaled, Score, Step
from trimtab.cli.chronicle.story import PolicyStory, Rate, Story, rates
from trimtab.fabric.wire.balance import Branch
from trimtab.fabric.wire.member import MemberHeartbeat, Role

_BARS = " ▁▂▃▄▅▆▇█"
_LEVELS = len(_BARS) - 1
_NARROWEST = 8
_REWARD_HEIGHT = 3
_DECISIONS = 4
_PARTS = 6
_DEATHS = 2
# More than the columns of any terminal.
_MOST_MOMENTS = 600
_ZONES = {
    Branch.GROW: ("grow", "red"),
    Branch.HOLD: ("hold", "green"),
    Branch.SHRINK: ("shrink", "cyan"),
}


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What only matters now, and is in no chronicle."""

    now: float
    """Unix time."""
    activity: str = ""
    """What the job does or waits for."""
    members: Sequence[MemberHeartbeat] = ()
    restarts: Mapping[str, int] = field(default_factory=dict)
    """By pod/container."""
    failing: Mapping[str, str] = field(default_factory=dict)
    """Why containers died that did a short while ago."""
    shortage: str | None = None
    """Why the job's storage takes no more."""
    quarantined: int = 0
    """Tasks that were given up."""
    quarantine_command: str = ""
    """Shows them, as a person can paste it."""


def given_up(moment: Moment) -> str:
    many = "1 task was" if moment.quarantined == 1 else f"{moment.quarantined} tasks were"
    return f"{many} given up; this says why: {moment.quarantine_command}"


def came_back(death: Died) -> str:
    return f"{death.pod} died and its trainer goes back to the checkpoint: {death.why}"


def render(job: str, story: Story, moment: Moment) -> RenderableType:
    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(no_wrap=True, style="bold")
    rows.add_column(ratio=1)
    rows.add_column(no_wrap=True)
    for name, policy in story.policies.items():
        if len(story.policies) > 1:
            rows.add_row(name, "", "")
        for row in _policy_rows(policy, story):
            rows.add_row(*row)
    for row in _fleet_rows(story, moment):
        rows.add_row(*row)
    troubles = [Text(f"{name} died: {why}", style="red") for name, why in moment.failing.items()]
    troubles += [
        Text(f"{clock(story.seconds(death.at)):>6}  {came_back(death)}", style="yellow")
        for death in story.deaths[-_DEATHS:]
    ]
    if moment.shortage:
        troubles.append(Text(moment.shortage, style="red"))
    if moment.quarantined:
        troubles.append(Text(given_up(moment), style="red"))
    return Panel(
        Group(rows, Text(), *_decision_lines(story), _pods(moment), *troubles),
        title=Text(f"{job} · {clock(story.seconds(moment.now))} · {moment.activity}"),
        title_align="left",
    )


def _policy_rows(policy: PolicyStory, story: Story) -> Iterator[tuple[str, RenderableType, RenderableType]]:
    steps, began = policy.steps, story.began
    if not steps:
        return
    last = steps[-1]
    rewards = [step.reward for step in steps]
    low, high = min(0.0, *rewards), max(1.0, *rewards)
    yield (
        "reward",
        BlockChart(values=rewards, low=low, high=high, height=_REWARD_HEIGHT, style="green"),
        _reward_text(last.step, rewards, began),
    )
    if last.reward_parts:
        words = [f"{name} {value:.2f}" for name, value in list(last.reward_parts.items())[:_PARTS]]
        yield "parts", Text(" · ".join(words), overflow="ellipsis", no_wrap=True), ""
    for benchmark, scores in policy.scores.items():
        values = _scores_by_step(scores, steps=last.step)
        chart = BlockChart(values=values, low=min(0.0, *values), high=max(1.0, *values), style="green")
        yield benchmark, chart, Text(f"{scores[-1].score:.3f} at version {scores[-1].version}{best_so_far(scores[-1])}")
    yield (
        "waiting",
        BlockChart(values=[step.waiting for step in steps], low=0, high=1, style="yellow"),
        _waiting(policy, began),
    )
    yield from _length_rows(steps)
    bound = began.max_staleness if began else max(1.0, *(step.staleness for step in steps))
    yield (
        "staleness",
        BlockChart(values=[step.staleness for step in steps], low=0, high=max(1.0, bound), style="blue"),
        Text(f"{last.staleness:.1f} of at most {bound:g} versions"),
    )
    if policy.versions:
        sizes = [version.size for version in policy.deltas] or [0]
        full = policy.full_size or max(sizes)
        yield "weights", BlockChart(values=sizes, low=0, high=full, style="magenta"), _weights(policy)
    yield from _learning_row(policy)
    yield _rate_row(rates(steps, story), last)


def _learning_row(policy: PolicyStory) -> Iterator[tuple[str, RenderableType, RenderableType]]:
    """Of trainers that tell, which those of versions before this one did not."""
    told = [one.values for one in policy.measured if LEARNING_RATE in one.values]
    if not told:
        return
    found = [values[LEARNING_RATE] for values in told]
    norm = told[-1].get("grad_norm")
    text = f"{found[-1]:.2e}" + ("" if norm is None else f" · gradient norm {norm:.2g}")
    yield "learning", BlockChart(values=found, low=0, high=max(found) or 1.0, style="cyan"), Text(text)


def _rate_row(found: Sequence[Rate], last: Step) -> tuple[str, RenderableType, RenderableType]:
    speeds = [rate.samples for rate in found] or [0.0]
    text = f"{per_second(speeds[-1])} samples/s"
    if found and found[-1].tokens:
        text += f" · {per_second(found[-1].tokens)} tokens/s"
    chart = BlockChart(values=speeds, low=0, high=max(speeds) or 1.0, style="cyan")
    return "rate", chart, Text(f"{text} · {last.samples:,} trained")


def _length_rows(steps: Sequence[Step]) -> Iterator[tuple[str, RenderableType, RenderableType]]:
    """Of jobs that tell, which those of versions before this one did not."""
    lengths = [step.length for step in steps if step.length is not None]
    if not lengths:
        return
    cut = steps[-1].truncated
    text = f"{lengths[-1]:,.1f} tokens" + (f" · {percent(cut)} cut short" if cut else "")
    yield "length", BlockChart(values=lengths, low=0, high=max(1.0, *lengths), style="blue"), Text(text)


def _scores_by_step(scores: Sequence[Score], *, steps: int) -> list[float]:
    """The score that was the newest at each step, so that its curve lies below the reward's."""
    found: list[float] = []
    for score, following in zip(scores, [*(later.version for later in scores[1:]), steps + 1], strict=True):
        found += [score.score or 0.0] * max(1, following - score.version)
    return found


def best_so_far(score: Score) -> str:
    """What stays in the store for its score; nothing where nobody says."""
    if score.best_version is None or score.best_score is None:
        return ""
    if score.best_version == score.version:
        return ", the best so far"
    return f", best {score.best_score:.3f} at {score.best_version}"


def _reward_text(step: int, rewards: Sequence[float], began: Began | None) -> Text:
    of_steps = f"/{began.max_steps}" if began and began.max_steps else ""
    text = Text().append(f"{rewards[-1]:.3f}", style="bold").append(f"\nstep {step + 1}{of_steps}")
    if began and began.target_reward is not None:
        mean = fmean(rewards[-began.window_steps :])
        text.append(f"\nmean {mean:.3f}, target {began.target_reward:g}", style="dim")
    return text


def _waiting(policy: PolicyStory, began: Began | None) -> Text:
    """Of the latest balance report, with its zone; before the first one, of the latest step."""
    if not policy.windows or began is None:
        return Text(percent(policy.steps[-1].waiting))
    zone, style = _ZONES[policy.windows[-1].zone]
    limits = f" ({percent(began.tau_low)}…{percent(began.tau_high)} holds)"
    return Text(percent(policy.windows[-1].waiting)).append(f" {zone}", style=style).append(limits, style="dim")


def _weights(policy: PolicyStory) -> Text:
    newest, full = policy.versions[-1], policy.full_size
    if not full or newest.size == full:
        return Text(f"version {newest.version}, {decimal(newest.size)} in full")
    return Text(f"v{newest.version}: {decimal(newest.size)} of {decimal(full)}, {percent(newest.size / full)}")


def _fleet_rows(story: Story, moment: Moment) -> Iterator[tuple[str, RenderableType, RenderableType]]:
    if not story.fleet:
        return
    latest = story.fleet[-1]
    sizes = _sizes_over_time(story, until=moment.now)
    most = max(1, *sizes, sum(latest.wanted.values()))
    words = [f"{pool} {ready} of {latest.wanted.get(pool, ready)} ready" for pool, ready in latest.ready.items()]
    tokens = sum(member.tokens_per_second for member in moment.members if member.role is Role.ROLLOUT)
    chart = BlockChart(values=sizes, low=0, high=most, style="white")
    yield "fleet", chart, Text(" · ".join([*words, f"{tokens:,.0f} tokens/s"]))


def _sizes_over_time(story: Story, *, until: float) -> list[float]:
    """Replicas that were ready, at equal distances in time."""
    times = [story.seconds(fleet.at) for fleet in story.fleet]
    sizes = [float(sum(fleet.ready.values())) for fleet in story.fleet]
    unit = max(1.0, story.seconds(until) / _MOST_MOMENTS)
    found: list[float] = []
    for start, end, size in zip(times, [*times[1:], story.seconds(until)], sizes, strict=True):
        found += [size] * (round(end / unit) - round(start / unit))
    return found or sizes[-1:]


def _decision_lines(story: Story) -> list[Text]:
    return [_decision(decision, story) for decision in story.decisions[-_DECISIONS:]]


def _decision(decision: Rescaled, story: Story) -> Text:
    text = Text(f"{clock(story.seconds(decision.at)):>6}  ", no_wrap=True, overflow="ellipsis")
    text.append(f"{decision.before} → {decision.after}", style="bold")
    return text.append(f"  {decision.reason}: {decision.message}")


def _pods(moment: Moment) -> Text:
    words = []
    for member in moment.members:
        again = sum(count for name, count in moment.restarts.items() if name.startswith(f"{member.member_id}/"))
        word = f"{member.member_id} {member.state}"
        if member.role is Role.ROLLOUT:
            word += f" {member.samples_per_second:.0f}/s, {member.in_flight} in flight"
        words.append(word + (f", {again} restarts" if again else ""))
    return Text("pods  " + " · ".join(words) if words else "pods  starting", style="dim")


def block_chart(values: Sequence[float], *, low: float, high: float, width: int, height: int = 1) -> list[str]:
    """Rows from top to bottom, the newest value on the right, averaged to fit."""
    span = max(high - low, 1e-9)
    filled = [round(min(1.0, max(0.0, (mean - low) / span)) * _LEVELS * height) for mean in _means(values, width)]
    return [
        "".join(_BARS[min(_LEVELS, max(0, level - _LEVELS * row))] for level in filled)
        for row in reversed(range(height))
    ]


def _means(values: Sequence[float], width: int) -> list[float]:
    columns = min(width, len(values))
    parts = (values[len(values) * n // columns : len(values) * (n + 1) // columns] for n in range(columns))
    return [sum(part) / len(part) for part in parts]


@dataclass(frozen=True, kw_only=True)
class BlockChart:
    """A block chart in a cell of a table. A value at the bottom of the scale still shows as a thin line."""

    values: Sequence[float]
    low: float
    high: float
    height: int = 1
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = block_chart(
            self.values, low=self.low, high=self.high, width=max(1, options.max_width), height=self.height
        )
        rows[-1] = rows[-1].replace(" ", "▁")
        yield Text("\n".join(rows), style=self.style, no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(_NARROWEST, options.max_width), options.max_width)
