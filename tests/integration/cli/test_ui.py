"""The server of `trimtab ui` over HTTP: who is let in, what a page hears, and what it can ask for."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import ClientConnectionError, ClientSession, ClientTimeout

from tests.support.cli.rows import ESCAPE, conversation, make_tokenizer
from tests.support.cli.run_story import STEPS, began, records, step
from tests.support.cli.stored import fill, nats_environment
from tests.support.polling import eventually, within
from trimtab.cli.chronicle.file import FILE_NAME, ChronicleFile
from trimtab.cli.chronicle.records import Record
from trimtab.cli.samples.choice import NothingChosen, Order, Wanted
from trimtab.cli.ui.guard import Guard
from trimtab.cli.ui.local import LocalRuns
from trimtab.cli.ui.lookup import Lookup
from trimtab.cli.ui.run import Place
from trimtab.cli.ui.server import Server, serving
from trimtab.embedded.ports import free_ports
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.spans import Producer
from trimtab.fabric.wire.trajectory import Finish, Scored

TOKEN = "t" * 43
DEADLINE = ClientTimeout(total=60.0)


def _write(folder: Path, *told: Record) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ChronicleFile(folder) as file:
        for record in told:
            file.append(record)


@asynccontextmanager
async def _page(root: Path) -> AsyncIterator[tuple[ClientSession, str]]:
    """A browser that came by the printed address."""
    (port,) = free_ports(1)
    server = Server([LocalRuns([root], beside=root)], Guard(port=port, token=TOKEN), tokenizer=None)
    address = f"http://127.0.0.1:{port}"
    async with serving(server, host="127.0.0.1", port=port), ClientSession(timeout=DEADLINE) as session:
        async with session.get(f"{address}/?token={TOKEN}") as answer:
            assert answer.status == 200
            cookie = answer.cookies[f"trimtab-ui-{port}"]
            assert cookie["httponly"]
            assert cookie["samesite"] == "Strict"
            session.headers["Cookie"] = f"{cookie.key}={cookie.value}"
        yield session, address


async def _events(session: ClientSession, url: str) -> AsyncIterator[tuple[str, Any]]:
    async with session.get(url) as answer:
        assert answer.content_type == "text/event-stream"
        name = ""
        async for line in answer.content:
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])


async def test_nobody_is_let_in_without_the_token_or_from_another_site(tmp_path: Path) -> None:
    async with _page(tmp_path) as (session, address), ClientSession(timeout=DEADLINE) as stranger:
        port = int(address.rpartition(":")[2])
        for path in ("/", "/?token=wrong", "/api/stream", "/static/app.js", f"/api/stream?token={TOKEN}"):
            async with stranger.get(address + path) as answer:
                assert answer.status == 403, path
                assert TOKEN not in await answer.text()
        refused: list[dict[str, str]] = [
            {"Host": f"evil.example:{port}"},
            {"Host": f"127.0.0.1.evil.example:{port}"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ]
        for headers in refused:
            async with session.get(f"{address}/static/app.js", headers=headers) as answer:
                assert answer.status == 403, headers
        async with session.post(f"{address}/api/stream") as answer:
            assert answer.status == 405
        for path in ("/static/../guard.py", "/static/%2e%2e/guard.py", "/static/vendor/vendored.json"):
            async with session.get(address + path) as answer:
                assert answer.status == 404, path
        for path in ("/", "/static/app.js", "/nothing"):
            async with session.get(address + path) as answer:
                assert "require-trusted-types-for" in answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_what_a_run_writes_is_on_the_page_within_a_second(tmp_path: Path) -> None:
    folder = tmp_path / ".trimtab" / "quickstart"
    _write(folder, *records())
    async with _page(tmp_path) as (session, address):
        async for name, said in _events(session, f"{address}/api/stream"):
            if name == "runs" and said["runs"]:
                break
        (run,) = said["runs"]
        assert (run["job"], run["step"], run["state"]) == ("quickstart", STEPS, "killed")
        heard, wrote_at, offset = 0, 0.0, None
        async for name, said in _events(session, f"{address}/api/stream?run={run['id']}::0"):
            if name != "told":
                continue
            heard += len(said["told"])
            if wrote_at:
                assert said["told"][0]["step"] == STEPS + 1
                assert time.monotonic() - wrote_at < 10.0  # a second on a machine that has nothing else to do
                break
            assert {figure["name"] for figure in said["figures"]} >= {"reward", "waiting", "fleet"}
            _write(folder, step(STEPS))
            wrote_at, offset = time.monotonic(), f"{said['generation']}:{heard}"
        # A page that lost the stream hears the rest alone, of another server too.
        async for name, said in _events(session, f"{address}/api/stream?run={run['id']}:{offset}"):
            if name == "told":
                assert (said["from"], len(said["told"])) == (heard - 1, 1)
                break
        (folder / FILE_NAME).unlink()
        _write(folder, began(at=3_000_000.0))
        async for name, said in _events(session, f"{address}/api/stream?run={run['id']}:{offset}"):
            if name == "told" and len(said["told"]) == 1 and said["from"] == 0:
                assert said["told"][0]["event"]["what"] == "began"
                break


async def test_a_question_that_cannot_be_answered_says_why(tmp_path: Path) -> None:
    _write(tmp_path / ".trimtab" / "quickstart", *records())
    async with _page(tmp_path) as (session, address):
        async for name, said in _events(session, f"{address}/api/stream"):
            if name == "runs" and said["runs"]:
                break
        samples = f"{address}/api/runs/{said['runs'][0]['id']}/samples"
        for path, status, why in (
            (f"{samples}?step=x", 400, "'x' is no number"),
            (f"{samples}?order=loudest", 400, "loudest"),
            (samples, 409, "there is no job quickstart"),
            (f"{address}/api/runs/gone/samples", 404, "no such run"),
            (f"{address}/api/stream?run=nonsense", 400, "ID:GENERATION:COUNT"),
        ):
            async with session.get(path) as answer:
                assert answer.status == status, path
                assert why in (await answer.json())["error"]


async def test_samples_have_their_rewards_and_their_words_with_probabilities(
    nats_settings: NatsSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tokenizer(tmp_path / "tokenizer")
    for name, value in nats_environment(nats_settings).items():
        monkeypatch.setenv(name, value)
    topology = JobTopology("default", f"job-{uuid4().hex[:8]}")
    rows = [
        conversation(
            trajectory_id=f"g-{number}.0.0", group_id=f"g-{number}/solver", task_id=f"g-{number}",
            prompt_id=f"prompt-{number}", group_index=0, group_size=1,
            outcome=Scored(reward=reward, finish=Finish.STOP),
        )
        for number, reward in enumerate((0.0, 1.0, 0.5))
    ]  # fmt: skip
    hostile = conversation(
        ((Producer.PROMPT, "hello", None), (Producer.MODEL, f"{ESCAPE}~ four", 3)),
        trajectory_id="g-9.0.0", policy="judge", role="judge", turns=1,
    )  # fmt: skip
    await fill(nats_settings, topology, [*rows, hostile])
    lookup = Lookup(Place(topology=topology, state_folder=None), tokenizer=tmp_path / "tokenizer")

    found = await asyncio.to_thread(lookup.samples, Wanted(policy="solver", order=Order.BEST), limit=2)
    assert [(sample.prompt, sample.reward) for sample in found.samples] == [("prompt-1", 1.0), ("prompt-2", 0.5)]
    assert found.of == 3
    spoken = await asyncio.to_thread(lookup.spoken, found.samples[0].sequence)
    assert [(text.producer, text.version) for text in spoken.texts][:2] == [("prompt", None), ("model", 7)]
    assert spoken.texts[1].marks[0] == (" four", pytest.approx(-0.01, abs=1e-3))
    assert await asyncio.to_thread(lookup.given_up) == []
    with pytest.raises(NothingChosen, match="read it again"):
        await asyncio.to_thread(lookup.spoken, 999)


@pytest.mark.slow
async def test_in_a_pod_it_answers_the_kubelet_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """As the chart calls it; the API server is not there."""
    page, probes = free_ports(2)
    user = {"name": "page", "user": {"token": "t"}}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "page",
        "clusters": [{"name": "away", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [user],
        "contexts": [{"name": "page", "context": {"cluster": "away", "user": "page"}}],
    }
    (tmp_path / "config").write_text(json.dumps(kubeconfig))
    command = [sys.executable, "-m", "trimtab.cli.main", "ui", "--kube", "--no-token", "--namespace=team-a"]
    process = await asyncio.create_subprocess_exec(
        *command, "--port", str(page), "--probes", str(probes),
        env=os.environ | {"KUBECONFIG": str(tmp_path / "config"), "HOME": str(tmp_path / "nowhere")},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    said = await within(process.stdout.readline(), timeout_s=30)
    assert said.decode().strip() == f"http://127.0.0.1:{page}/"
    async with ClientSession(timeout=DEADLINE) as session:

        async def answer(path: str) -> tuple[int, str]:
            try:
                async with session.get(f"http://127.0.0.1:{probes}{path}") as found:
                    return found.status, await found.text()
            except ClientConnectionError:
                return 0, ""

        async def is_not_ready() -> bool:
            return (await answer("/readyz"))[0] == 503

        await eventually(is_not_ready, timeout_s=10)
        assert "the cluster does not answer" in (await answer("/readyz"))[1]
        assert (await answer("/healthz"))[0] == 200
        async with session.get(f"http://127.0.0.1:{page}/") as found:
            assert found.status == 200
        async with session.get(f"http://127.0.0.1:{page}/", headers={"Host": "evil.example"}) as found:
            assert found.status == 403, "no token is needed, and another name is refused all the same"
    process.terminate()
    assert await within(process.wait(), timeout_s=20) == 0
