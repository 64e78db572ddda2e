"""The charts of a run, each from its story; a chart of which there is no data is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.filesize import decimal

from trimtab.cli.chronicle.figures import clock, per_second, percent
from trimtab.cli.chronicle.records import LEARNING_RATE, Step
from trimtab.cli.chronicle.story import Story, rates
from trimtab.cli.report.plot import Axis, Band, Chart, Level, Mark, Series, clock_ticks, count_ticks, round_ticks

_HEADROOM = 1.08


def charts(story: Story) -> list[Chart]:
    makers: tuple[Callable[[Story], Chart | None], ...] = (
        _reward, _reward_parts, _evaluation, _length, _truncated, _waiting, _fleet, _staleness,
        _learning_rate, _weights, _throughput,
    )  # fmt: skip
    return [chart for maker in makers if (chart := maker(story)) is not None]


def _reward(story: Story) -> Chart | None:
    series = _by_step(story, lambda step: step.reward, kind_of_value="reward")
    if not series:
        return None
    target = story.began.target_reward if story.began else None
    low, high = _extent(series, at_least=(0.0, 1.0))
    return Chart(
        key="reward",
        title="Reward",
        note="Mean over the batch of each trainer step.",
        series=series,
        x=_step_axis(series, name="trainer step"),
        y=Axis(low=low, high=high, text=_short, ticks=round_ticks),
        levels=[Level(value=target, label=f"target {target:g}")] if target is not None else [],
    )


def _reward_parts(story: Story) -> Chart | None:
    series: list[Series] = []
    for name, policy in story.policies.items():
        for part in sorted({part for step in policy.steps for part in step.reward_parts}):
            points = [
                (float(step.step + 1), step.reward_parts[part]) for step in policy.steps if part in step.reward_parts
            ]
            series.append(Series(name=_whose(story, name, part), points=points, color=len(series)))
    return _scores(
        series,
        key="reward-parts",
        title="Parts of the reward",
        note="What the workflow says that the reward is made of: means over the batch of each trainer step.",
        over="trainer step",
    )


def _learning_rate(story: Story) -> Chart | None:
    series: list[Series] = []
    for name, policy in story.policies.items():
        points = [
            (float(one.step), one.values[LEARNING_RATE]) for one in policy.measured if LEARNING_RATE in one.values
        ]
        if points:
            series.append(Series(name=_whose(story, name, "learning rate"), points=points, color=len(series)))
    if not series:
        return None
    _, high = _extent(series, at_least=(0.0, 0.0))
    return Chart(
        key="learning-rate",
        title="Learning rate",
        note="Of each update, as the schedule has it; after a change of the manifest, the new one.",
        series=series,
        x=_step_axis(series, name="trainer step"),
        y=Axis(low=0.0, high=high * _HEADROOM or 1.0, text=lambda value: f"{value:.2g}", ticks=round_ticks),
    )


def _evaluation(story: Story) -> Chart | None:
    found: list[Series] = []
    for name, policy in story.policies.items():
        for benchmark, scores in policy.scores.items():
            points = [(float(score.version), score.score) for score in scores if score.score is not None]
            found.append(Series(name=_whose(story, name, benchmark), points=points, color=len(found)))
    return _scores(
        found,
        key="evaluation",
        title="Evaluation",
        note="Mean reward on held-out prompts, which are never trained on.",
        over="weight version",
    )


def _scores(series: list[Series], *, key: str, title: str, note: str, over: str) -> Chart | None:
    """Numbers that are mostly between 0 and 1."""
    if not series:
        return None
    low, high = _extent(series, at_least=(0.0, 1.0))
    return Chart(
        key=key,
        title=title,
        note=note,
        series=series,
        x=_step_axis(series, name=over),
        y=Axis(low=low, high=high, text=_short, ticks=round_ticks),
    )


def _waiting(story: Story) -> Chart | None:
    series: list[Series] = []
    for color, (name, policy) in enumerate(story.policies.items()):
        steps = [(story.seconds(step.at), step.waiting) for step in policy.steps]
        windows = [(story.seconds(window.at), window.waiting) for window in policy.windows]
        if steps:
            series.append(Series(name=_whose(story, name, "steps"), points=steps, color=color, quiet=True))
        if windows:
            series.append(Series(name=_whose(story, name, "balance reports"), points=windows, color=color, kind="dots"))
    if not series:
        return None
    return Chart(
        key="waiting",
        title="Waiting",
        note="Share of its time that the trainer waits for samples. Points are the balance reports that scaling rests "
        "on; vertical lines are changes of the fleet.",
        series=series,
        x=_time_axis(story, series),
        y=Axis(low=0.0, high=1.0, text=percent, ticks=round_ticks),
        bands=list(_zones(story)),
        marks=[*_decisions(story), *_resumptions(story)],
        wide=True,
    )


def _zones(story: Story) -> Iterator[Band]:
    if story.began is None or story.began.mode == "Off":
        return
    low, high = story.began.tau_low, story.began.tau_high
    yield Band(low=high, high=1.0, label=f"grow > {percent(high)}", tone="grow")
    yield Band(low=low, high=high, label="hold", tone="hold")
    yield Band(low=0.0, high=low, label=f"shrink < {percent(low)}", tone="shrink")


def _fleet(story: Story) -> Chart | None:
    if not story.fleet:
        return None
    times = [story.seconds(fleet.at) for fleet in story.fleet]
    end = max(story.duration_s, times[-1])
    ready = [*(float(sum(fleet.ready.values())) for fleet in story.fleet)]
    wanted = [*(float(sum(fleet.wanted.values())) for fleet in story.fleet)]
    series = [
        Series(name="wanted", points=_held(times, wanted, end), kind="steps", color=1, quiet=True),
        Series(name="ready", points=_held(times, ready, end), kind="steps", color=0),
    ]
    return Chart(
        key="fleet",
        title="Fleet",
        note="Rollout replicas that take tasks, and how many are wanted.",
        series=series,
        x=_time_axis(story, series),
        y=Axis(low=0.0, high=max(1.0, *ready, *wanted) * _HEADROOM, text=_short, ticks=count_ticks),
        marks=[*_decisions(story), *_resumptions(story)],
        wide=True,
    )


def _staleness(story: Story) -> Chart | None:
    series = _by_step(story, lambda step: step.staleness, kind_of_value="staleness")
    if not series:
        return None
    bound = story.began.max_staleness if story.began else None
    _, high = _extent(series, at_least=(0.0, 1.0 if bound is None else float(bound)))
    return Chart(
        key="staleness",
        title="Staleness",
        note="Versions that a batch's samples lag behind the trainer, on average.",
        series=series,
        x=_step_axis(series, name="trainer step"),
        y=Axis(low=0.0, high=high * 1.15, text=_short, ticks=round_ticks),
        levels=[Level(value=float(bound), label=f"bound {bound}")] if bound is not None else [],
    )


def _weights(story: Story) -> Chart | None:
    series, full = [], 0
    for color, (name, policy) in enumerate(story.policies.items()):
        if policy.deltas:
            points = [(float(delta.version), float(delta.size)) for delta in policy.deltas]
            series.append(Series(name=_whose(story, name, "delta"), points=points, color=color, kind="bars"))
            full = max(full, policy.full_size or 0)
    if not series:
        return None
    most = max(full, *(size for one in series for _, size in one.points))
    return Chart(
        key="weights",
        title="Weight bytes",
        note="What a rollout pod fetches for each version, against a full copy (compressed without loss).",
        series=series,
        x=_step_axis(series, name="weight version"),
        y=Axis(low=0.0, high=most * 1.15, text=lambda size: decimal(round(size)), ticks=round_ticks),
        levels=[Level(value=float(full), label=f"full copy {decimal(full)}")] if full else [],
    )


def _throughput(story: Story) -> Chart | None:
    series = []
    for color, (name, policy) in enumerate(story.policies.items()):
        if points := [(rate.at, rate.samples) for rate in rates(policy.steps, story)]:
            series.append(Series(name=_whose(story, name, "samples/s"), points=points, color=color))
    if not series:
        return None
    return Chart(
        key="throughput",
        title="Throughput",
        note="Samples trained per second, over five steps each.",
        series=series,
        x=_time_axis(story, series),
        y=Axis(
            low=0.0,
            high=max(1.0, *(rate for one in series for _, rate in one.points)) * _HEADROOM,
            text=per_second,
            ticks=round_ticks,
        ),
        marks=[*_decisions(story), *_resumptions(story)],
        wide=True,
    )


def _length(story: Story) -> Chart | None:
    series = _by_step(story, lambda step: step.length, kind_of_value="tokens")
    if not series:
        return None
    return Chart(
        key="length",
        title="Length",
        note="Tokens of an answer, the environment's words included, on average over each step's batch.",
        series=series,
        x=_step_axis(series, name="trainer step"),
        y=Axis(low=0.0, high=_extent(series, at_least=(0.0, 1.0))[1] * _HEADROOM, text=_short, ticks=round_ticks),
    )


def _truncated(story: Story) -> Chart | None:
    series = _by_step(story, lambda step: step.truncated, kind_of_value="cut short")
    if not any(share for one in series for _, share in one.points):
        return None
    return Chart(
        key="truncated",
        title="Cut short",
        note="Share of answers in each step's batch that ended for want of room.",
        series=series,
        x=_step_axis(series, name="trainer step"),
        y=Axis(low=0.0, high=1.0, text=percent, ticks=round_ticks),
    )


def _by_step(story: Story, value: Callable[[Step], float | None], *, kind_of_value: str) -> list[Series]:
    """Of the policies that have any such value."""
    found = []
    for color, (name, policy) in enumerate(story.policies.items()):
        told = [(float(step.step + 1), value(step)) for step in policy.steps]
        points = [(step, known) for step, known in told if known is not None]
        if points:
            found.append(Series(name=_whose(story, name, kind_of_value), points=points, color=color))
    return found


def _step_axis(series: Sequence[Series], *, name: str) -> Axis:
    """With room for half a bar at both ends, where there are bars."""
    across = [x for one in series for x, _ in one.points]
    room = 0.5 if any(one.kind == "bars" for one in series) else 0.0
    low, high = min(across) - room, max(*across, min(across) + 1) + room
    return Axis(low=low, high=high, text=_short, ticks=count_ticks, name=name)


def _time_axis(story: Story, series: Sequence[Series]) -> Axis:
    end = max(1.0, story.duration_s, *(x for one in series for x, _ in one.points))
    return Axis(low=0.0, high=end, text=clock, ticks=clock_ticks, name="running time")


def _decisions(story: Story) -> list[Mark]:
    return [
        Mark(
            x=story.seconds(decision.at),
            label=f"{decision.before} → {decision.after}",
            title=f"{decision.reason}: {decision.message}",
        )
        for decision in story.decisions
    ]


def _resumptions(story: Story) -> list[Mark]:
    return [Mark(x=x, label="resumed", title="the job was resumed", quiet=True) for x in story.resumed_at]


def _held(times: Sequence[float], values: Sequence[float], end: float) -> list[tuple[float, float]]:
    """Each value until the next, the last until the end."""
    return [*zip(times, values, strict=True), (end, values[-1])]


def _extent(series: Sequence[Series], *, at_least: tuple[float, float]) -> tuple[float, float]:
    values = [y for one in series for _, y in one.points]
    return min(at_least[0], *values), max(at_least[1], *values)


def _whose(story: Story, policy: str, what: str) -> str:
    return f"{policy} {what}" if len(story.policies) > 1 else what


def _short(value: float) -> str:
    return f"{round(value, 3):,.10g}"
