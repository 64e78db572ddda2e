"""The shipped world over HTTP, by AgentGym's and by AgentBench's protocol: the same episode as in the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from trimtab.fabric.pod import JobMisconfigured
from trimtab.rollout.workflows.rehearsal import Script, rehearse
from trimtab.rollout.workflows.team import PromptUnusable, ScoredConversation, WorkflowError
from trimtab.rollout.workflows.text_environment import TextEnvironment
from trimtab.rollout.worlds.drawing import HouseSize, draw_house
from trimtab.rollout.worlds.exchange import WorldServer, WorldServerFailed
from trimtab.rollout.worlds.planning import shortest_plan
from trimtab.rollout.worlds.server import HouseServer

SIZE = {"rooms": 3, "containers": 2, "locks": 1, "goals": 1, "others": 0, "least_steps": 4}
GYM = "trimtab.rollout.worlds.agentgym:AgentGymEnvironment"
BENCH = "trimtab.rollout.worlds.agentbench:AgentBenchEnvironment"
HOUSE = "trimtab.rollout.worlds.house:HouseWorld"
Serve = Callable[[web.Application], Awaitable[str]]


def plan(house: int) -> list[str]:
    drawn = draw_house(house, HouseSize(**SIZE))
    return shortest_plan(drawn, drawn.start)


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers = []

    async def start(app: web.Application) -> str:
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        return str(server.make_url("")).rstrip("/")

    yield start
    for server in servers:
        await server.close()


async def play(
    script: Script, environment: str, prompt: dict[str, Any], *, max_turns: int = 30, **arguments: Any
) -> ScoredConversation:
    workflow = TextEnvironment(environment=environment, environment_args=arguments, max_turns=max_turns)
    (scored,) = (await rehearse(workflow, prompt, scripts={"solver": script})).scored
    return scored


@pytest.mark.parametrize(
    ("environment", "column", "path", "arguments"),
    [
        (GYM, "task", "", {"dialect": "alfworld", "show_actions": False}),
        (BENCH, "index", "/api", {"task": "house"}),
    ],
)
async def test_a_house_behind_a_server_is_played_as_one_in_the_worker(
    serve: Serve, environment: str, column: str, path: str, arguments: dict[str, Any]
) -> None:
    server = HouseServer(SIZE)
    url = await serve(server.app()) + path
    actions = ["sing", *plan(4)]
    there, here = Script(*actions), Script(*actions)
    remote = await play(there, environment, {column: 4}, url=url, **arguments)
    local = await play(here, HOUSE, {"house": 4}, **SIZE)
    assert remote.reward == pytest.approx(local.reward) == pytest.approx(1.0)
    assert [heard.split() for heard in there.heard] == [heard.split() for heard in here.heard]
    assert server._episodes == {}


@pytest.mark.parametrize(
    ("environment", "column", "path", "arguments"),
    [(GYM, "task", "", {"dialect": "alfworld"}), (BENCH, "index", "/api", {"task": "house"})],
)
async def test_an_episode_that_ends_early_is_closed_on_the_server(
    serve: Serve, environment: str, column: str, path: str, arguments: dict[str, Any]
) -> None:
    server = HouseServer(SIZE)
    url = await serve(server.app()) + path
    await play(Script("sing"), environment, {column: 4}, max_turns=1, url=url, **arguments)
    with pytest.raises(WorkflowError, match="no line left"):
        await play(Script(), environment, {column: 4}, url=url, **arguments)
    assert server._episodes == {}


async def test_at_agentbenchs_own_limit_the_reward_is_what_the_server_says(serve: Serve) -> None:
    url = await serve(HouseServer(SIZE, max_steps=2).app())
    scored = await play(Script(*plan(4)), BENCH, {"index": 4}, url=f"{url}/api", task="house")
    assert scored.conversation.turns == 2
    assert scored.reward == pytest.approx(2 / len(plan(4)))


async def test_the_policy_reads_what_alfworlds_server_says_can_be_done(serve: Serve) -> None:
    url = await serve(HouseServer({**SIZE, "show_actions": False}).app())
    script = Script("sing")
    await play(script, GYM, {"task": 4}, max_turns=1, url=url, dialect="alfworld")
    assert plan(4)[0] in script.heard[0].split("Available actions: ")[1]


@pytest.mark.parametrize(
    ("environment", "prompt", "arguments", "message"),
    [
        (GYM, {"task": "x"}, {"dialect": "alfworld"}, "column 'task' is 'x': a number"),
        (BENCH, {}, {"task": "house"}, "column 'index' is None: an index of house"),
    ],
)
async def test_a_prompt_without_a_task_is_refused(
    environment: str, prompt: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(PromptUnusable, match=message):
        await play(Script(), environment, prompt, url="http://127.0.0.1:9", **arguments)


@pytest.mark.parametrize(
    ("index", "task", "message"),
    [(5000, "house", "answered 400: Error: Index out of bounds"), (1, "os-std", "attempts, the last: it answered 406")],
)
async def test_what_agentbenchs_controller_refuses_fails_the_episode(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, index: int, task: str, message: str
) -> None:
    monkeypatch.setattr("trimtab.rollout.worlds.exchange._ATTEMPTS", 2)
    url = await serve(HouseServer(SIZE).app())
    with pytest.raises(WorldServerFailed, match=message):
        await play(Script(), BENCH, {"index": index}, url=f"{url}/api", task=task)


async def test_a_server_that_is_full_says_so(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.rollout.worlds.server._MAX_EPISODES", 1)
    monkeypatch.setattr("trimtab.rollout.worlds.exchange._ATTEMPTS", 1)
    now = [0.0]
    url = await serve(HouseServer(SIZE, clock=lambda: now[0]).app())
    server = WorldServer(url, timeout_s=10)
    assert await server.ask("/create", {}, repeatable=True) == {"id": 0}
    with pytest.raises(WorldServerFailed, match="503: 1 episodes are played"):
        await server.ask("/create", {}, repeatable=True)
    now[0] = 3601.0
    assert await server.ask("/create", {}, repeatable=True) == {"id": 1}


def answering(answers: dict[str, list[web.Response]], asked: list[str]) -> web.Application:
    async def handle(request: web.Request) -> web.Response:
        asked.append(request.path)
        return answers[request.path].pop(0)

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    return app


async def test_webshops_words_are_spoken_too(serve: Serve) -> None:
    asked: list[str] = []
    answers = {
        "/create": [web.json_response(3)],
        "/reset": [web.json_response(["Instruction: buy a cup", None])],
        "/step": [web.json_response({"state": "Thank you", "reward": 0.5, "done": True, "info": None})],
        "/close": [web.json_response({"closed": True})],
    }
    url = await serve(answering(answers, asked))
    script = Script("click[buy now]")
    scored = await play(script, GYM, {"task": 7}, url=url, dialect="webshop")
    assert (scored.reward, script.heard) == (0.5, ["Instruction: buy a cup\n"])
    assert asked == ["/create", "/reset", "/step", "/close"]


@pytest.mark.parametrize(
    ("path", "answer", "message"),
    [
        ("/create", {"error": "no room"}, "/create: 'no room'"),
        ("/create", {"number": 3}, "/create answered .*: id is needed"),
        ("/reset", {"id": 3}, "/reset answered .*: observation, a text, is needed"),
        ("/step", {"observation": "x", "reward": None, "done": False}, "reward, a number, and done are needed"),
        ("/step", {"observation": "x", "reward": 1.0}, "reward, a number, and done are needed"),
        ("/step", {"error": "The task with environment 3 has finished."}, "/step: 'The task .* finished.'"),
    ],
)
async def test_what_is_no_answer_fails_the_episode(serve: Serve, path: str, answer: object, message: str) -> None:
    answers = {
        "/create": [web.json_response({"id": 3})],
        "/reset": [web.json_response({"observation": "x"})],
        "/close": [web.json_response({})],
        path: [web.json_response(answer)],
    }
    url = await serve(answering(answers, []))
    with pytest.raises(WorldServerFailed, match=message) as caught:
        await play(Script("go"), GYM, {"task": 7}, url=url, dialect="alfworld")
    assert caught.value.kind == "environment-failed"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"status": "task error", "result": "boom", "history": []}, "ended as 'task error': 'boom'"),
        ({"status": "completed", "result": {"reward": 1}, "history": []}, "but reward: set reward_field"),
        ({"status": "completed", "result": None, "history": []}, "no number 'result', but None"),
        ({"status": "running", "history": [{"role": "judge", "content": "x"}]}, "messages with role user or agent"),
        ({}, "output with a status is needed"),
    ],
)
async def test_what_agentbench_could_not_do_is_no_reward(serve: Serve, output: object, message: str) -> None:
    began = {"session_id": 1, "output": {"status": "running", "history": [{"role": "user", "content": "go"}]}}
    answers = {
        "/start_sample": [web.json_response(began)],
        "/interact": [web.json_response({"session_id": 1, "output": output})],
        "/cancel": [web.json_response({})],
    }
    url = await serve(answering(answers, []))
    with pytest.raises(WorldServerFailed, match=message):
        await play(Script("x"), BENCH, {"index": 1}, url=url, task="t")


async def test_an_action_is_never_sent_twice_but_what_begins_an_episode_is(serve: Serve) -> None:
    async def no_wait(_: float) -> None: ...

    asked: list[str] = []
    answers = {
        "/reset": [web.Response(status=504), web.json_response({})],
        "/step": [web.Response(status=503), web.json_response({}), web.Response(status=504)],
    }
    url = await serve(answering(answers, asked))
    server = WorldServer(url, timeout_s=10, sleep=no_wait)
    assert await server.ask("/reset", {}, repeatable=True) == {}
    # 503 says that it has not been looked at, 504 that nobody knows.
    assert await server.ask("/step", {}, repeatable=False) == {}
    with pytest.raises(WorldServerFailed, match="it answered 504"):
        await server.ask("/step", {}, repeatable=False)

    async def hang_up(request: web.Request) -> web.Response:
        asked.append("cut")
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    app = web.Application()
    app.router.add_post("/step", hang_up)
    cut = WorldServer(await serve(app), timeout_s=10, sleep=no_wait)
    with pytest.raises(WorldServerFailed, match="/step: ServerDisconnected"):
        await cut.ask("/step", {}, repeatable=False)
    assert asked.count("cut") == 1


@pytest.mark.parametrize(
    ("url", "message"), [("ftp://a", "url is 'ftp://a'"), ("http://a:pass@b", "a user or a password")]
)
def test_an_address_that_cannot_be_is_named(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WorldServer(url, timeout_s=1)


@pytest.mark.skipif(find_spec("openenv") is not None, reason="OpenEnv's library is installed")
def test_a_job_of_openenv_is_refused_where_its_library_is_not_installed() -> None:
    with pytest.raises(JobMisconfigured, match="pip install openenv-core"):
        TextEnvironment(
            environment="trimtab.rollout.worlds.openenv:OpenEnvEnvironment",
            environment_args={"url": "http://a", "action_field": "message", "text_field": "text"},
        )
