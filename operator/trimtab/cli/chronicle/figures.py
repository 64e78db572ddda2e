"""What a run comes down to, in a few figures: printed at its end, and the head of the report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from rich.filesize import decimal

from trimtab.cli.chronicle.story import PolicyStory, Story

_WINDOW = 10
_MAX_WHY = 200


@dataclass(frozen=True, kw_only=True)
class Figure:
    name: str
    value: str
    note: str


def figures(story: Story) -> list[Figure]:
    """Those of which something is known."""
    found: list[Figure] = []
    for name, policy in story.policies.items():
        of_whom = f"{name}: " if len(story.policies) > 1 else ""
        found += [replace(figure, name=of_whom + figure.name) for figure in _of_policy(policy, story)]
    return [*found, *_of_fleet(story), *_of_cost(story), *_of_deaths(story)]


def clock(seconds: float) -> str:
    """Such as 1:05, or 2:10:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def per_second(rate: float) -> str:
    """With as many decimals as a slow job needs."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"


def percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 or share < 0.0005 else f"{share:.1%}"


def _of_policy(policy: PolicyStory, story: Story) -> list[Figure]:
    steps = policy.steps
    if not steps:
        return []
    window = story.began.window_steps if story.began else _WINDOW
    found = [
        Figure(
            name="reward",
            value=f"{fmean(step.reward for step in steps[-window:]):.3f}",
            note=f"mean of the last {min(window, len(steps))} steps; {steps[0].reward:.3f} at step {steps[0].step + 1}",
        )
    ]
    for benchmark, scores in policy.scores.items():
        found.append(
            Figure(
                name=benchmark,
                value=f"{scores[-1].score:.3f}",
                note=f"{scores[-1].episodes} episodes of version {scores[-1].version}; "
                f"{scores[0].score:.3f} at version {scores[0].version}",
            )
        )
    waited = [(window.waiting, window.seconds) for window in policy.windows]
    if total := sum(seconds for _, seconds in waited):
        mean = sum(waiting * seconds for waiting, seconds in waited) / total
        note = (
            f"of the trainer's time; {percent(waited[0][0])} in the first window, {percent(waited[-1][0])} in the last"
        )
        found.append(Figure(name="waiting", value=percent(mean), note=note))
    bound = f", at most {story.began.max_staleness} allowed" if story.began else ""
    found.append(
        Figure(
            name="staleness", value=f"{fmean(step.staleness for step in steps):.2f}", note=f"versions on average{bound}"
        )
    )
    deltas, full = policy.deltas, policy.full_size
    if deltas and full:
        sent = sum(delta.size for delta in deltas)
        found.append(
            Figure(
                name="weight bytes",
                value=percent(sent / (full * len(deltas))),
                note=f"of full copies: {len(deltas)} deltas, {decimal(sent // len(deltas))} each on average; "
                f"a full copy has {decimal(full)}",
            )
        )
    elapsed = story.seconds(steps[-1].at) - story.seconds(steps[0].at)
    if elapsed > 0:
        rate = (steps[-1].samples - steps[0].samples) / elapsed
        note = f"samples/s; {steps[-1].samples:,} samples in {len(steps)} steps"
        if tokens := sum(step.tokens for step in steps[1:]):
            note += f"; {per_second(tokens / elapsed)} trained tokens/s"
        found.append(Figure(name="throughput", value=per_second(rate), note=note))
    return found


def _of_fleet(story: Story) -> list[Figure]:
    sizes = [sum(fleet.ready.values()) for fleet in story.fleet]
    if not any(sizes):
        return []
    first = next(size for size in sizes if size)
    decisions = len(story.decisions)
    return [
        Figure(
            name="fleet",
            value=f"{first} → {max(sizes)}" if max(sizes) > first else str(first),
            note=f"replicas, first and most; {decisions} scaling decision{'' if decisions == 1 else 's'}",
        )
    ]


def _of_cost(story: Story) -> list[Figure]:
    total = story.spending.total
    if not total:
        return []
    samples = sum(policy.steps[-1].samples for policy in story.policies.values() if policy.steps)
    each = f"; {1000 * total / samples:.3g} for 1,000 samples" if samples else ""
    return [Figure(name="cost", value=f"{total:.3g}", note=f"of rollout replicas, by their costPerHour{each}")]


def _of_deaths(story: Story) -> list[Figure]:
    if not story.deaths:
        return []
    last = story.deaths[-1]
    why = " ".join(last.why.split())[:_MAX_WHY]
    note = f"of trainers, from their checkpoints; the last at {clock(story.seconds(last.at))}: {last.pod}: {why}"
    return [Figure(name="restarts", value=str(len(story.deaths)), note=note)]
