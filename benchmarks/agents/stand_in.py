"""An engine that answers at once, behind the gateway and without it: what is left is what the gateway takes."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web

from tests.support.gateway.tokenizers import end_of_turn, tokenizer_of
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.spans import model_span
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.gateway.gateway import Gateway, running_gateway
from trimtab.rollout.gateway.tally import GatewayMetrics
from trimtab.rollout.policy.sampler import Completion, Listener
from trimtab.rollout.workflows.conversation import Sampler
from trimtab.rollout.workflows.team import Assignment, Role, Team

FAMILY = "qwen2.5"
TOKENIZER = tokenizer_of(FAMILY)
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks something up.",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
        },
    },
)
_SAID = 'Let me see.\n<tool_call>\n{"name": "look", "arguments": {"at": "the second shelf"}}\n</tool_call>'
_DAY_S = 86400.0


class AtOnce:
    """Implements conversation.Sampler: the same call every time."""

    def __init__(self) -> None:
        token_ids = (*TOKENIZER.encode(_SAID), end_of_turn(FAMILY))
        self._completion = Completion(
            token_ids=token_ids,
            logprobs=(-0.5,) * len(token_ids),
            spans=(model_span(len(token_ids), version=0),),
            finish="stop",
        )

    async def complete(
        self,
        prompt: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        deadline_s: float,
        listener: Listener | None = None,
    ) -> Completion:
        if listener is not None:
            listener(self._completion.token_ids)
        return self._completion


@asynccontextmanager
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(roles=("solver",), metrics=GatewayMetrics(Metrics()), clock=time.monotonic) as running:
        yield running


async def opened(gateway: Gateway, sampler: Sampler, *, sessions: int, stack: AsyncExitStack) -> tuple[str, list[str]]:
    """The address, and a key for each session; they last as long as the stack."""
    url, keys = "", []
    for number in range(sessions):
        task = Assignment(prompt={}, seed=number, request_id=f"s{number}", deadline_s=_DAY_S)
        role = Role("solver", "solver", TOKENIZER, sampler, SamplingSettings(max_new_tokens=64))
        endpoint = await stack.enter_async_context(Team({"solver": role}, task, gateway=gateway).endpoint())
        url = f"{endpoint.openai_url}/chat/completions"
        keys.append(endpoint.key)
    return url, keys


@asynccontextmanager
async def direct() -> AsyncIterator[str]:
    """The same answer from a server that does nothing else."""
    call = {"name": "look", "arguments": json.dumps({"at": "the second shelf"})}
    message: Mapping[str, object] = {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [{"id": "call00001", "type": "function", "function": call}],
    }
    answer = {"choices": [{"index": 0, "message": message}], "usage": {"completion_tokens": 1}}

    async def answered(request: web.Request) -> web.Response:
        await request.json()
        return web.json_response(answer)

    application = web.Application()
    application.router.add_post("/v1/chat/completions", answered)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}/v1/chat/completions"
    finally:
        await runner.cleanup()
