"""Agents of both libraries through the gateway to a real SGLang, streaming and not, with tools: what they are told is
what is trained.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.support.rollout.speakers import assignment
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.spans import Producer
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.gateway.gateway import running_gateway
from trimtab.rollout.gateway.tally import GatewayMetrics
from trimtab.rollout.policy.sampler import PolicySampler
from trimtab.rollout.policy.version_gate import VersionGate
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.workflows.forest import forest_of
from trimtab.rollout.workflows.team import AgentEndpoint, Role, Team

HELLO: Any = [{"role": "user", "content": "Count from one to ten."}]
LENGTH = 24
CHAT_WITH_TOOLS = (
    "{%- if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif -%}"
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{%- for call in message.tool_calls or [] %}"
    '{{ \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' '
    "+ (call.function.arguments | tojson) + '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor -%}"
    "{{ '<|im_start|>assistant\\n' }}"
)
TOOL: Any = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True)
class Site:
    endpoint: AgentEndpoint
    tokenizer: Tokenizer
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic

    def said(self) -> list[str]:
        """What is trained of each row, as text."""
        said = []
        for row in forest_of("solver", list(self.endpoint.scored(1.0))).rows:
            at, tokens = 0, list[int]()
            for span in row.spans:
                tokens += row.token_ids[at : at + span.length] if span.producer is Producer.MODEL else ()
                at += span.length
            assert len(row.logprobs) == len(tokens)
            said.append(self.tokenizer.decode(tokens))
        return said


@pytest.fixture
async def site(served: str, smollm2_folder: Path) -> AsyncIterator[Site]:
    from transformers import PreTrainedTokenizerFast

    pretrained = PreTrainedTokenizerFast.from_pretrained(smollm2_folder, local_files_only=True)
    pretrained.chat_template = CHAT_WITH_TOOLS
    tokenizer = Tokenizer.of(pretrained)
    async with EngineClient(served, request_timeout_s=300.0, salt_prefixes=True, whole_logprobs=True) as engine:
        sampler = PolicySampler(engine, VersionGate())
        roles = {"solver": Role("solver", "solver", tokenizer, sampler, SamplingSettings(max_new_tokens=LENGTH))}
        metrics = GatewayMetrics(Metrics())
        async with running_gateway(roles=("solver",), metrics=metrics, clock=time.monotonic) as gateway:
            team = Team(roles, assignment(), gateway=gateway)
            async with (
                team.endpoint() as endpoint,
                openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key, timeout=600) as by_openai,
                anthropic.AsyncAnthropic(base_url=endpoint.url, api_key=endpoint.key, timeout=600) as by_anthropic,
            ):
                yield Site(endpoint, tokenizer, by_openai, by_anthropic)


async def test_openai_whole_and_streamed_in_parts(site: Site) -> None:
    whole = await site.openai.chat.completions.create(model="solver", messages=HELLO)
    text = whole.choices[0].message.content or ""
    parts: list[str] = []
    async for chunk in await site.openai.chat.completions.create(model="solver", messages=HELLO, stream=True):
        parts += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    assert len(parts) > 3
    assert [said.strip() for said in site.said()] == [text.strip(), "".join(parts).strip()]


async def test_anthropic_streamed_in_parts(site: Site) -> None:
    async with site.anthropic.messages.stream(model="solver", messages=HELLO, max_tokens=LENGTH) as stream:
        parts = [text async for text in stream.text_stream]
    assert len(parts) > 3
    (said,) = site.said()
    assert said.strip() == "".join(parts).strip()


async def test_tools_are_shown_to_the_model_and_its_turns_go_on_as_sampled(site: Site) -> None:
    messages: Any = list(HELLO)
    for _ in range(2):
        answer = await site.openai.chat.completions.create(model="solver", messages=messages, tools=[TOOL])
        said = answer.choices[0].message
        messages += [said.model_dump(exclude_none=True), {"role": "user", "content": "Go on."}]
        assert answer.usage is not None
        assert answer.usage.completion_tokens > 0
    assert len(site.said()) == 1, "one row: nothing was tokenized again"


async def test_a_completion_of_a_text_is_streamed_up_to_its_stop_text(site: Site) -> None:
    request: Any = {"model": "solver", "prompt": "One, two, three, four, five,", "stop": [","]}
    parts = [chunk.choices[0].text async for chunk in await site.openai.completions.create(**request, stream=True)]
    assert "," not in "".join(parts)
