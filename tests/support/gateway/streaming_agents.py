"""Agents as commands that only ever stream: they say at their end what they were told, turn by turn."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from trimtab.rollout.agents.reward import AgentWork

_BEGIN = """
import json, os, sys
prompt = json.load(sys.stdin)
messages, told = [{"role": "user", "content": prompt["opening"]}], []
"""
_END = """
for _ in range(prompt["turns"]):
    said = "".join(pieces(messages))
    told.append(said)
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "and 7"}]
print(json.dumps(told))
"""
_PLAIN = """
import urllib.request
def pieces(messages):
    body = json.dumps({"model": "solver", "messages": messages, "stream": True}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            if line == b"data: [DONE]\\n":
                return
            if line.startswith(b"data: "):
                yield from (choice["delta"].get("content") or "" for choice in json.loads(line[6:])["choices"])
    sys.exit("the stream has no end")
"""
_OPENAI = """
import openai
client = openai.OpenAI(max_retries=0, timeout=600)
def pieces(messages):
    for chunk in client.chat.completions.create(model="solver", messages=messages, stream=True):
        yield from (choice.delta.content or "" for choice in chunk.choices)
"""
_ANTHROPIC = """
import anthropic
client = anthropic.Anthropic(max_retries=0, timeout=600)
def pieces(messages):
    with client.messages.stream(model="solver", messages=messages, max_tokens=4000) as stream:
        yield from stream.text_stream
"""
_LIBRARIES = {"plain": _PLAIN, "openai": _OPENAI, "anthropic": _ANTHROPIC}
PROGRAMS = {name: _BEGIN + asking + _END for name, asking in _LIBRARIES.items()}
"""By the library that they ask with; a plain one has none."""


def note(work: AgentWork) -> float:
    """The reward of every agent that came to its end; what it was told is written into the folder of its prompt."""
    told = json.dumps({"task": work.prompt["task"], "told": json.loads(work.output)})
    Path(work.prompt["folder"], f"{secrets.token_hex(8)}.json").write_text(told)
    return 1.0
