"""`trimtab ui` in a real Chromium, beside a real job: what a person sees, by mouse and by keys.

With TRIMTAB_UI_PICTURES=docs/images it takes the pictures of docs/ui.md.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tests.support.cli.browser import browsing
from tests.support.cli.run_story import START, ended, records, rescaled
from tests.support.polling import eventually
from tests.support.quickstart_job import make_quickstart
from trimtab.cli.chronicle.file import ChronicleFile
from trimtab.cli.chronicle.records import Began, Fleet
from trimtab.embedded.ports import free_ports

# Playwright leaves its pipes to the garbage collector.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]

_MARKUP = '<img src="x" onerror="document.title=`taken`"><b>bold</b>'
_ACTING = "\u202egnorw\x1b[2J"
_SHOWN = r"\u202egnorw\u001b[2J"
_PICTURES = "TRIMTAB_UI_PICTURES"
_STEPS = 60
_MOST_BYTES = 150_000
_END_S = 120.0


@contextmanager
def _process(*arguments: str, folder: Path, log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "trimtab.cli.main", *arguments]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=os.environ | environment)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@asynccontextmanager
async def _ui(folder: Path, *, port: int, cache: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], str]]:
    log = cache / "ui.log"
    log.write_bytes(b"")
    with _process("ui", "--port", str(port), folder=folder, log=log, XDG_CACHE_HOME=str(cache)) as process:
        await eventually(lambda: "token=" in log.read_text(), timeout_s=30, ended=process.poll)
        yield process, log.read_text().split()[0]


def _job(folder: Path) -> Path:
    file = make_quickstart(folder, name="digits", max_steps=_STEPS, whole=True)
    manifest = yaml.safe_load(file.read_text())
    # So slow that the trainer waits for one replica on a slow machine too.
    manifest["spec"]["workflow"]["args"]["tool_seconds"] = 1.0
    manifest["spec"]["autoscaling"]["maxReplicas"] = 2
    file.write_text(yaml.safe_dump(manifest))
    return file


def _earlier_run(folder: Path, *, hours: float) -> None:
    """Of so many hours ago, with markup in its reasons."""
    folder.mkdir(parents=True)
    later = time.time() - 3600 * hours - START
    with ChronicleFile(folder) as file:
        began, *others = records()
        for record in (
            began,
            # On a slow machine none is known when it is first asked for.
            Fleet(at=START, ready={}, wanted={}),
            *others,
            rescaled(3, 4, at=30, message=_MARKUP + _ACTING),
            ended("failed", at=70, why=_MARKUP),
        ):
            if isinstance(record, Began):
                record = msgspec.structs.replace(record, job=folder.name)
            file.append(msgspec.structs.replace(record, at=record.at + later))


async def _steps_drawn(page: Any) -> int:
    text = await page.locator(".head .facts").inner_text()
    return int(text.partition("step ")[2].split()[0]) if "step " in text else 0


async def _grows(page: Any, beyond: int) -> None:
    async def grown() -> bool:
        return await _steps_drawn(page) > beyond

    await eventually(grown, timeout_s=60)


async def _picture(page: Any, name: str, tmp_path: Path) -> None:
    folder = Path(os.environ.get(_PICTURES, tmp_path))
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        await page.wait_for_timeout(800)
        path = folder / f"ui-{name}-{scheme}.png"
        await page.screenshot(path=str(path))
        assert 5_000 < path.stat().st_size < _MOST_BYTES, path
    await page.emulate_media(color_scheme="light")


def _is_complaint(said: Any) -> bool:
    """Not the browser's word on an answer that the page deals with: a job may end while it asks for samples."""
    return said.type == "error" and "status of 409 (Conflict)" not in said.text


async def test_a_person_watches_a_run_on_the_page(tmp_path: Path) -> None:
    file = _job(tmp_path / "jobs")
    _earlier_run(tmp_path / "jobs" / ".trimtab" / "earlier", hours=3)
    (port,) = free_ports(1)
    complaints: list[str] = []
    job = _process("run", str(file), folder=file.parent, log=tmp_path / "run.log")
    async with browsing() as page:
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.extend([said.text] if _is_complaint(said) else []))
        with job as running:
            async with _ui(tmp_path / "jobs", port=port, cache=tmp_path) as (server, address):
                await page.goto(address)
                await page.wait_for_url(f"http://127.0.0.1:{port}/**")
                assert "token" not in page.url, "a token does not stay where people copy it from"
                await page.locator(".run:has-text('digits')").click()
                await _grows(page, 0)
                await page.locator("[data-chart=reward] canvas").wait_for()
                await _grows(page, await _steps_drawn(page) + 2)
                await page.keyboard.press("2")
                await page.locator("#pods tr:has-text('trainer')").wait_for()
                await page.locator("#pods tr:has-text('rollout')").first.wait_for()
                assert not complaints, complaints

                server.kill()
                server.wait()
                await page.locator(".away").wait_for()
                complaints.clear()
            async with _ui(tmp_path / "jobs", port=port, cache=tmp_path):
                await page.locator(".away").wait_for(state="detached")
                complaints.clear()
                await page.keyboard.press("1")
                await _grows(page, await _steps_drawn(page))

                await page.keyboard.press("3")
                await page.locator("#decisions tr:has-text('TrainerStarving')").first.wait_for()
                await _picture(page, "decisions", tmp_path)
                await page.keyboard.press("4")
                await page.locator(".text.model").first.wait_for()
                said = await page.locator("#spoken h2").inner_text()
                await page.keyboard.press("j")
                await page.locator("#samples li:nth-child(2) [aria-current]").wait_for()
                assert said
                await _picture(page, "samples", tmp_path)
                await page.keyboard.press("2")
                await page.locator("#pods").wait_for()
                await _picture(page, "fleet", tmp_path)
                await page.keyboard.press("1")
                await _grows(page, 45 if _PICTURES in os.environ else 12)
                await _picture(page, "curves", tmp_path)

                await page.keyboard.press("o")
                await page.locator("[data-chart=reward] .legend .name:has-text('earlier')").wait_for()
                await page.keyboard.press("t")
                await page.keyboard.press("s")
                await _picture(page, "over", tmp_path)

                running.send_signal(signal.SIGINT)
                await page.locator(".head .state.stopped").wait_for()
                await eventually(lambda: running.poll() is not None, timeout_s=60)
                await page.keyboard.press("c")
                await page.keyboard.press("4")
                await page.locator("#spoken .text.model").first.wait_for()
                await page.keyboard.press("5")
                await page.locator(".panel .none:text-is('None.')").wait_for()

                await page.locator(".run:has-text('earlier')").click()
                await page.keyboard.press("1")
                await page.locator("[data-chart=reward] canvas").wait_for()
                await page.keyboard.press("3")
                await page.locator("#decisions td").filter(has_text=_MARKUP + _SHOWN).wait_for()
                assert await page.locator("main img, main b").count() == 0
                assert "taken" not in await page.title()
                assert not complaints, complaints
