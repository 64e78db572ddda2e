"""Whole jobs in which policies and pools differ: batch sizes and engines by policy, a frozen policy on an endpoint, and
pools of unequal speed.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from examples.curves.running import prepare, variants, write_manifest
from tests.support.polling import patiently
from trimtab.dataflow.audit.streams import Streams, read_streams
from trimtab.dataflow.audit.violations import violations
from trimtab.dataflow.ledger.records import StepGranted
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.pod import read_job
from trimtab.operator.local.job import LocalJob

pytestmark = pytest.mark.slow

_TIMEOUT_S = 280.0
_STEPS = 24
KEY = "sk-of-the-judge"
Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capacity")
    prepare("solver_verifier", folder, seed=0)
    return folder


def manifest_of(prepared: Path, folder: Path, *, steps: int, edit: Edit) -> Path:
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    file = write_manifest(variants("solver_verifier")["job"], folder, seed=0, steps=steps)
    manifest = yaml.safe_load(file.read_text())
    del manifest["spec"]["evaluation"]
    edit(manifest["spec"])
    file.write_text(yaml.safe_dump(manifest))
    return file


async def run(file: Path) -> Streams:
    """To its end, and then what is on its streams, in which nothing is amiss."""
    job = read_job(file)
    state = file.parent / ".trimtab"
    state.mkdir()
    local = LocalJob(job, job_file=file, folder=state)
    async with patiently(_TIMEOUT_S):
        assert await local.run(asyncio.Event())
    server = EmbeddedNats(state / "nats")
    await asyncio.to_thread(server.start)
    try:
        async with await Bus.connect(server.settings, name="test") as bus:
            streams = await read_streams(bus, local.topology)
    finally:
        await asyncio.to_thread(server.stop)
    sizes = {policy.name: job.spec.batch_size(policy.name) for policy in job.spec.learning}
    assert violations(streams, data=job.spec.data, batch_sizes=sizes) == []
    return streams


def steps_of(streams: Streams, policy: str) -> list[StepGranted]:
    grants = [record for record in streams.records if isinstance(record, StepGranted) and record.policy == policy]
    return [grant for grant in grants if grant.last]


def rewards_of(streams: Streams, policy: str) -> list[float]:
    """Mean of each step's batch."""
    by_group: dict[str, list[float]] = {}
    for header in streams.headers:
        if header.reward is not None:
            by_group.setdefault(header.group_id, []).append(header.reward)
    grants = [record for record in streams.records if isinstance(record, StepGranted) and record.policy == policy]
    batches: dict[int, list[float]] = {}
    for grant in grants:
        batches.setdefault(grant.step, []).extend(reward for group in grant.groups for reward in by_group[group])
    return [fmean(batches[step]) for step in sorted(batches)]


async def test_batches_of_two_to_one_and_engines_of_three_to_one_and_both_learn(prepared: Path, tmp_path: Path) -> None:
    def edit(spec: dict[str, Any]) -> None:
        spec["policies"][1]["batchSize"] = 128
        spec["pools"][0]["engines"] = [{"policy": "solver", "replicas": 3}, {"policy": "verifier"}]

    file = manifest_of(prepared, tmp_path, steps=_STEPS, edit=edit)
    streams = await run(file)
    for policy, size in (("solver", 256), ("verifier", 128)):
        rewards = rewards_of(streams, policy)
        assert len(rewards) == _STEPS
        assert fmean(rewards[-5:]) > fmean(rewards[:3]) + 0.15, policy
        first = steps_of(streams, policy)[0]
        assert len(first.groups) == size // 8
    # No barrier: the smaller batch is through with its steps when the larger is about half-way.
    ended = steps_of(streams, "verifier")[-1].granted_at
    behind = sum(grant.granted_at < ended for grant in steps_of(streams, "solver"))
    assert _STEPS // 3 <= behind <= _STEPS * 5 // 6
    logs = sorted(path.name for path in (tmp_path / ".trimtab" / "logs").glob("*engine*"))
    assert [name.rpartition(".engine")[2] for name in logs] == [
        "-2-solver.log",
        "-3-solver.log",
        "-solver.log",
        "-verifier.log",
    ]


_GRADED = '''
from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team


class Graded:
    """The solver's reward is what the judge says of its answer."""

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        solver, judge = team.begin("solver"), team.begin("judge")
        solver.hear(str(task.column("prompt")))
        said = await solver.speak()
        judge.hear([
            {"role": "system", "content": "Say RIGHT or WRONG."},
            {"role": "user", "content": f"{task.column('answer')} {said}"},
        ])
        verdict = await judge.speak()
        return Episode((ScoredConversation(solver, reward=float(verdict == "RIGHT")),))
'''


@asynccontextmanager
async def judge_endpoint(asked: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Anthropic's API with a judge that knows. It refuses other keys, and now and then it has too much to do."""

    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("x-api-key") != KEY:
            return web.json_response({"type": "error"}, status=401)
        if request.method == "GET":
            return web.json_response({"id": "claude"})
        body = await request.json()
        asked.append(body)
        if len(asked) % 50 == 7:
            return web.json_response({"type": "error"}, status=529)
        wanted, _, said = body["messages"][-1]["content"].partition(" ")
        verdict = "RIGHT" if wanted == said else "WRONG"
        return web.json_response({"content": [{"type": "text", "text": verdict}], "stop_reason": "end_turn"})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        yield str(server.make_url("/"))


async def test_a_policy_learns_from_a_frozen_judge_at_an_endpoint(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_JUDGE_KEY", KEY)
    asked: list[dict[str, Any]] = []
    async with judge_endpoint(asked) as url:
        endpoint = {"name": "anthropic", "url": url, "model": "claude", "apiKeySecret": {"name": "judge", "key": "key"}}

        def edit(spec: dict[str, Any]) -> None:
            spec["workflow"] = {"entrypoint": "graded:Graded", "source": {"path": "."}}
            spec["policies"][1] = {"name": "judge", "frozen": True, "sampling": {"maxTokens": 5, "temperature": 0}}
            spec["data"]["batchSize"] = 128
            spec["pools"][0]["engines"] = [{"policy": "solver"}, {"policy": "judge", "endpoint": endpoint}]

        file = manifest_of(prepared, tmp_path, steps=16, edit=edit)
        (tmp_path / "graded.py").write_text(_GRADED)
        streams = await run(file)
    rewards = rewards_of(streams, "solver")
    assert len(rewards) == 16
    assert fmean(rewards[-5:]) > fmean(rewards[:3]) + 0.1
    assert {header.policy for header in streams.headers} == {"solver"}, "no row of the frozen policy is sent"
    assert asked[0]["system"] == "Say RIGHT or WRONG."
    assert asked[0]["temperature"] == 0
    logs = "".join(path.read_text() for path in (tmp_path / ".trimtab" / "logs").iterdir())
    assert KEY not in logs


async def test_pools_of_unequal_speed_give_what_they_can_and_the_slow_one_holds_nobody_up(
    prepared: Path, tmp_path: Path
) -> None:
    """One pool's tools take three seconds longer in each episode, as those of a pool far away do."""

    def edit(spec: dict[str, Any]) -> None:
        spec["workflow"]["entrypoint"] = "distant:Distant"
        spec["data"]["batchSize"] = 64
        pool = {"maxConcurrency": 32, "gracePeriodSeconds": 20}
        spec["pools"] = [
            {"name": "near", **pool, "costPerHour": 4.0},
            {"name": "far", **pool, "costPerHour": 1.0, "engine": {"args": ["--max-running-requests=2"]}},
        ]

    file = manifest_of(prepared, tmp_path, steps=10, edit=edit)
    (tmp_path / "distant.py").write_text(
        "import asyncio\nimport os\n\nfrom judged_answer import JudgedAnswer\n\n\n"
        "class Distant(JudgedAnswer):\n"
        "    async def run(self, task, team, /):\n"
        "        if os.environ['TRIMTAB_POD__POOL'] == 'far':\n"
        "            await asyncio.sleep(3.0)\n"
        "        return await super().run(task, team)\n"
    )
    streams = await run(file)
    made = Counter(header.pool for header in streams.headers if header.policy == "solver")
    assert made["far"] > 0
    assert made["near"] > made["far"], "each takes what it can bear"
    shortest = min(header.finished_at - header.started_at for header in streams.headers if header.pool == "far")
    assert shortest >= 3.0
    by_pool = {header.group_id: header.pool for header in streams.headers}
    trained = Counter(by_pool[group] for grant in steps_of(streams, "solver") for group in grant.groups)
    assert trained["far"] > 0, "what comes from far away is trained on too"
    assert len(steps_of(streams, "verifier")) == 10
