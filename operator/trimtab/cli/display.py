"""Shows a running job to people: a live panel on a terminal, lines elsewhere, and the panel as a picture on request."""

from __future__ import annotations

import asyncio
import io
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trimtab.cli.chronicle.chronicler import Chronicler
from trimtab.cli.chronicle.figures import clock, figures
from trimtab.cli.chronicle.story import Story
from trimtab.cli.plain_lines import PlainLines
from trimtab.cli.view import Moment, render
from trimtab.operator.local.job import LocalJob

_REFRESH_S = 0.5
_PICTURE_COLUMNS = 100
# Rich has the font fetched from the network; every machine has one that will do.
_FONT_FROM_AFAR = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)


async def show(local: LocalJob, chronicler: Chronicler, console: Console, *, picture: Path | None) -> None:
    """Until cancelled. `picture` is an SVG file for the view as it was at the last step."""
    lines, album = PlainLines(chronicler.story), _Album(chronicler.story)
    try:
        await _keep_showing(local, chronicler, console, lines, album)
    finally:
        if picture is not None:
            album.save(picture, title=f"trimtab run · {local.job.metadata.name}")


class _Album:
    """Keeps the newest panel that shows a new step: what comes after the last one is only the end of processes."""

    def __init__(self, story: Story) -> None:
        self._panel: RenderableType | None = None
        self._story = story
        self._steps = _steps(story)

    def note(self, panel: RenderableType) -> None:
        if (steps := _steps(self._story)) > self._steps:
            self._steps, self._panel = steps, panel

    def save(self, picture: Path, *, title: str) -> None:
        if self._panel is not None:
            picture.write_text(as_picture(self._panel, title=title), encoding="utf-8")


async def _keep_showing(
    local: LocalJob, chronicler: Chronicler, console: Console, lines: PlainLines, album: _Album
) -> None:
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        while True:
            await asyncio.sleep(_REFRESH_S)
            if local.watch is None:
                continue
            status = local.objects.job.status
            chronicler.observe_fleet(status.pools if status is not None else (), local.watch.members.present)
            chronicler.observe_measures(local.watch.members.present)
            chronicler.observe_trainers(list(local.objects.trainers.values()))
            moment = _moment(local)
            panel = render(local.job.metadata.name, chronicler.story, moment)
            if console.is_terminal:
                live.update(panel)
            else:
                elapsed = clock(chronicler.story.seconds(time.time()))
                for line in lines.new(moment):
                    console.print(f"{elapsed:>7}  {line}", soft_wrap=True, markup=False, highlight=False)
            album.note(panel)


def print_summary(story: Story, console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for figure in figures(story):
        table.add_row(Text(figure.name), Text(figure.value), Text(figure.note))
    if table.row_count:
        console.print(table)


def as_picture(panel: RenderableType, *, title: str) -> str:
    """An SVG that shows it as a terminal would."""
    canvas = Console(
        record=True, width=_PICTURE_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    canvas.print(panel)
    return _FONT_FROM_AFAR.sub("", canvas.export_svg(title=title, unique_id="trimtab"))


def _moment(local: LocalJob) -> Moment:
    assert local.watch is not None
    status = local.objects.job.status
    return Moment(
        now=time.time(),
        activity=local.objects.activity,
        members=local.watch.members.present,
        restarts=local.executor.restarts(),
        failing=local.executor.failing(),
        shortage=local.shortage,
        quarantined=status.quarantined_tasks if status is not None else 0,
        quarantine_command=_quarantine_command(local),
    )


def _quarantine_command(local: LocalJob) -> str:
    words = [f"{_invoked_as()} quarantine {local.job.metadata.name} --state-folder {shlex.quote(str(local.folder))}"]
    if (namespace := local.topology.namespace) != "default":
        words.append(f"--namespace {namespace}")
    return " ".join(words)


def _steps(story: Story) -> int:
    return sum(len(policy.steps) for policy in story.policies.values())


def _invoked_as() -> str:
    """What to write for `trimtab` in a command that people paste."""
    program = Path(sys.argv[0])
    if program.name != "trimtab":
        return f"{shlex.quote(sys.executable)} -m trimtab.cli.main"
    found = shutil.which("trimtab")
    if found is not None and Path(found).resolve() == program.resolve():
        return "trimtab"
    return shlex.quote(str(program))
