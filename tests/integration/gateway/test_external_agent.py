"""Agents as they are: a command that asks the gateway, what it is worth, and what becomes of one that goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.gateway.agent_team import lines, scripted_team
from tests.support.polling import eventually
from trimtab.rollout.agents.process import AgentFailed, AgentOutOfMemory, AgentTimeout
from trimtab.rollout.agents.reward import RewardFailed
from trimtab.rollout.workflows.external_agent import ExternalAgent
from trimtab.rollout.workflows.rehearsal import Script
from trimtab.rollout.workflows.team import Assignment, Episode

REWARDS = "tests.support.gateway.rewards"
PROMPT = {"question": "How much?", "answer": "42"}
PLAIN = """
import json, os, sys, urllib.request
def ask(text, role="planner"):
    body = json.dumps({"model": role, "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
prompt = json.load(sys.stdin)
"""
OPENAI = """
import json, sys, openai
prompt = json.load(sys.stdin)
client = openai.OpenAI()
completion = client.chat.completions.create(model="planner", messages=[{"role": "user", "content": prompt["question"]}])
print(completion.choices[0].message.content)
"""
ANTHROPIC = """
import json, os, anthropic
prompt = json.load(open(os.environ["TRIMTAB_PROMPT_FILE"]))
client = anthropic.Anthropic()
message = client.messages.create(
    model="planner", max_tokens=99, messages=[{"role": "user", "content": prompt["question"]}]
)
print(message.content[0].text)
"""


async def run(program: str, *, scripts: dict[str, Script] | None = None, **arguments: Any) -> Episode:
    task = Assignment(prompt=PROMPT, seed=0, request_id="t.0", deadline_s=300)
    if "reward_url" not in arguments:
        arguments.setdefault("reward", f"{REWARDS}:said_so")
    agent = ExternalAgent(command=[sys.executable, "-c", program], **arguments)
    async with scripted_team(task, scripts or {"planner": lines("It is 42.")}) as team:
        return await agent.run(task, team)


@pytest.mark.parametrize(
    "program",
    [OPENAI, pytest.param(ANTHROPIC, marks=pytest.mark.slow), PLAIN + 'print(ask(prompt["question"]))'],
)
async def test_an_agent_asks_and_is_rewarded(program: str) -> None:
    (scored,) = (await run(program)).scored
    assert scored.reward == 1.0
    assert scored.conversation.role.name == "planner"
    assert scored.conversation.turns == 1


async def test_an_answer_that_is_wrong_is_worth_nothing() -> None:
    (scored,) = (await run(PLAIN + 'print(ask("?"))', scripts={"planner": lines("It is 41.")})).scored
    assert scored.reward == 0.0


async def test_every_role_that_was_asked_has_its_own_reward() -> None:
    program = PLAIN + 'ask("plan"); ask("right?", "verifier"); print(json.dumps({"planner": 0.25, "verifier": 1}))'
    scripts = {"planner": lines("so"), "verifier": lines("yes")}
    episode = await run(program, scripts=scripts, reward=f"{REWARDS}:by_role")
    assert {one.conversation.role.name: one.reward for one in episode.scored} == {"planner": 0.25, "verifier": 1.0}


async def test_a_role_without_a_reward_is_no_zero() -> None:
    program = PLAIN + 'ask("plan"); print(json.dumps({"verifier": 1}))'
    with pytest.raises(RewardFailed, match="planner spoke too"):
        await run(program, reward=f"{REWARDS}:by_role")


async def test_a_reward_reads_what_the_agent_wrote_and_then_its_folder_is_gone() -> None:
    program = PLAIN + 'ask("?"); open("score", "w").write("0.5"); open("/proc/self/cwd/where", "w"); print(os.getcwd())'
    (scored,) = (await run(program, reward=f"{REWARDS}:from_a_file")).scored
    assert scored.reward == 0.5


async def test_an_endpoint_says_what_it_was_worth() -> None:
    received: list[Any] = []

    async def judge(request: web.Request) -> web.Response:
        received.append(await request.json())
        return web.json_response({"reward": 0.75})

    application = web.Application()
    application.router.add_post("/judge", judge)
    async with TestServer(application) as server:
        url = str(server.make_url("/judge"))
        (scored,) = (await run(PLAIN + 'print(ask("?"))', reward_url=url)).scored
        with pytest.raises(RewardFailed, match="404"):
            await run(PLAIN + 'print(ask("?"))', reward_url=str(server.make_url("/nobody")))
    assert scored.reward == 0.75
    assert received == [{"prompt": PROMPT, "output": "It is 42.\n", "errors": ""}]


async def test_a_large_answer_of_an_endpoint_is_read_to_its_end_and_a_larger_one_refused() -> None:
    async def judge(request: web.Request) -> web.Response:
        return web.json_response({"why": "x" * int(request.query["size"]), "reward": 0.75})

    application = web.Application()
    application.router.add_post("/judge", judge)
    async with TestServer(application) as server:
        url = server.make_url("/judge")
        (scored,) = (await run(PLAIN + 'print(ask("?"))', reward_url=str(url % {"size": 900_000}))).scored
        assert scored.reward == 0.75
        with pytest.raises(RewardFailed, match="over 1048576 bytes"):
            await run(PLAIN + 'print(ask("?"))', reward_url=str(url % {"size": 2_000_000}))


async def test_a_reward_that_takes_too_long_is_a_failed_episode_or_the_score_that_was_asked_for() -> None:
    late: dict[str, Any] = {"reward": f"{REWARDS}:never", "reward_timeout_s": 0.5}
    with pytest.raises(RewardFailed, match=r"took over 0\.5 s"):
        await run(PLAIN + 'print(ask("?"))', **late)
    (scored,) = (await run(PLAIN + 'print(ask("?"))', **late, on_reward_timeout=-0.5)).scored
    assert scored.reward == -0.5
    assert scored.reward_parts == {"check_timeout": 1.0}


@pytest.mark.parametrize("reward", ["broken", "not_a_number"])
async def test_a_reward_that_fails_is_a_failed_episode(reward: str) -> None:
    with pytest.raises(RewardFailed):
        await run(PLAIN + 'print(ask("?"))', reward=f"{REWARDS}:{reward}")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (PLAIN + 'ask("?"); sys.exit("out of luck")', "ended with 1: out of luck"),
        (PLAIN + 'ask("?"); os.kill(os.getpid(), 9)', "ended with -9"),
        ("print(1)", "without asking any role"),
        (PLAIN + 'ask("?", "gpt-4o")', "404"),
    ],
)
async def test_an_agent_that_goes_wrong_is_a_failed_episode(program: str, message: str) -> None:
    with pytest.raises(AgentFailed, match=message):
        await run(program)


async def test_a_command_that_does_not_exist_is_named() -> None:
    task = Assignment(prompt=PROMPT, seed=0, request_id="t.0", deadline_s=60)
    agent = ExternalAgent(command=["no-such-agent"], reward=f"{REWARDS}:said_so")
    async with scripted_team(task, {"planner": lines()}) as team:
        with pytest.raises(AgentFailed, match="no-such-agent"):
            await agent.run(task, team)


async def test_nothing_of_the_pod_is_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_NATS__PASSWORD", "secret")
    program = PLAIN + 'ask("?"); print(json.dumps(dict(os.environ))); raise SystemExit(json.dumps(dict(os.environ)))'
    with pytest.raises(AgentFailed) as caught:
        await run(program, environment={"LEVEL": "3"})
    seen = json.loads(str(caught.value).split(": ", 1)[1])
    assert seen.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"
    ours = {"OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "TRIMTAB_PROMPT_FILE"}
    assert set(seen) == ours | {"PATH", "HOME", "TMPDIR", "LANG", "LEVEL"}
    assert seen["OPENAI_API_KEY"] == seen["ANTHROPIC_API_KEY"]


ESCAPE = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600) # " + MARK], start_new_session=True)
"""


@pytest.mark.parametrize("afterwards", ["assert child.poll() is None", "time.sleep(600)"])
async def test_everything_that_it_started_ends_with_it(afterwards: str) -> None:
    mark = uuid.uuid4().hex
    program = PLAIN + f"MARK = {mark!r}\n" + ESCAPE + 'print(ask("?"))\n' + afterwards
    if "sleep" in afterwards:
        with pytest.raises(AgentTimeout, match="time_limit_s"):
            await run(program, time_limit_s=5)
    else:
        await run(program)
    assert not running(mark)


async def test_an_episode_that_is_cancelled_ends_its_agent() -> None:
    mark = uuid.uuid4().hex
    program = PLAIN + f"MARK = {mark!r}\n" + ESCAPE + "time.sleep(600)"
    episode = asyncio.ensure_future(run(program))
    await eventually(lambda: len(running(mark)) > 1, timeout_s=60)
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    assert not running(mark)


WORKER = """
import asyncio, os, sys
from pathlib import Path
from trimtab.rollout.agents.files import readable
from trimtab.rollout.agents.process import AgentLimits, AgentReach, run_agent
folder = Path(sys.argv[1])
limits = AgentLimits(time_s=600, memory_bytes=1 << 32, output_bytes=1000)
command = [sys.executable, "-c", sys.stdin.read()]
reach = AgentReach(read=readable(command, source=None, more=(), executables=os.defpath), ports=[])
asyncio.run(run_agent(command, environment={}, given=folder / "prompt", folder=folder, reach=reach, limits=limits))
"""


async def test_a_worker_that_is_killed_takes_its_agents_with_it(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    (tmp_path / "prompt").write_text("{}")
    (tmp_path / "agent").write_text(f"MARK = {mark!r}\n" + ESCAPE + "time.sleep(600)")
    with (tmp_path / "agent").open() as program:
        worker = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, str(tmp_path), stdin=program)
    await eventually(lambda: len(running(mark)) > 1, timeout_s=60)
    worker.kill()
    await worker.wait()
    await eventually(lambda: not running(mark), timeout_s=30)


@pytest.mark.parametrize(
    "program",
    [
        "everything = bytearray(600 << 20)",
        "import subprocess, sys, time\n"
        "eat = 'import time; much = bytearray(150 << 20); time.sleep(600)'\n"
        "eaters = [subprocess.Popen([sys.executable, '-c', eat]) for _ in range(4)]\n"
        "time.sleep(600)",
    ],
)
async def test_memory_is_bounded_in_one_process_and_in_all_together(program: str) -> None:
    with pytest.raises((AgentFailed, AgentOutOfMemory), match=r"MemoryError|400 MiB"):
        await run(program, memory_mib=400)


async def test_output_without_end_is_cut_to_its_end() -> None:
    program = PLAIN + 'print("x" * (5 << 20)); print(ask("?"))'
    began = time.monotonic()
    (scored,) = (await run(program, output_kib=1)).scored
    assert scored.reward == 1.0
    assert time.monotonic() - began < 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": "python agent.py"}, "a list of words"),
        ({"command": []}, "a list of words"),
        ({"reward": None}, "either reward"),
        ({"reward_url": "http://x"}, "either reward"),
        ({"reward": None, "reward_url": "http://ada:secret@x"}, "a user or a password"),
        ({"on_reward_timeout": True}, "on_reward_timeout is True"),
        ({"environment": {"OPENAI_API_KEY": "mine"}}, "environment.OPENAI_API_KEY"),
        ({"environment": {"LEVEL": 3}}, "environment.LEVEL"),
        ({"memory_mib": 0}, "memory_mib"),
        ({"readable": "/data"}, "a list of absolute paths"),
        ({"readable": ["data"]}, "a list of absolute paths"),
        ({"containment": "none"}, "required or best-effort"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExternalAgent(**{"command": ["agent"], "reward": f"{REWARDS}:said_so", **arguments})


def running(mark: str) -> list[int]:
    """Processes with the mark among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found
