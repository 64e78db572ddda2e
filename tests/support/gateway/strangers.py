"""Programs that ask three times and send back what was said, with libraries that others wrote. They run elsewhere."""

from __future__ import annotations

AGENTS_SDK = """
import json
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled


@function_tool
def letters(word: str) -> int:
    '''How many letters a word has.'''
    return len(word)


set_tracing_disabled(True)
prompt = json.load(sys.stdin)
agent = Agent(name="solver", model="solver", instructions="Be brief.", tools=[letters])
history = []
for question in prompt["questions"]:
    result = Runner.run_sync(agent, [*history, {"role": "user", "content": question}], max_turns=4)
    history = result.to_input_list()
print(len(history))
"""

LANGGRAPH = """
import json
import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver


def letters(word: str) -> int:
    '''How many letters a word has.'''
    return len(word)


prompt = json.load(sys.stdin)
agent = create_agent(ChatOpenAI(model="solver"), tools=[letters], checkpointer=InMemorySaver())
for question in prompt["questions"]:
    asked = {"messages": [{"role": "user", "content": question}]}
    state = agent.invoke(asked, {"configurable": {"thread_id": "1"}, "recursion_limit": 8})
print(len(state["messages"]))
"""

SMOLAGENTS = """
import json
import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def letters(word: str) -> int:
    '''How many letters a word has.

    Args:
        word: The word.
    '''
    return len(word)


prompt = json.load(sys.stdin)
agent = ToolCallingAgent(tools=[letters], model=OpenAIModel(model_id="solver"), max_steps=3)
agent.run(prompt["questions"][0])
print(len(agent.memory.steps))
"""

VERIFIERS = """
import verifiers as vf
from datasets import Dataset


async def said_something(completion, **_):
    return float(any(message["content"] for message in completion if message["role"] == "assistant"))


class Guessing(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **_):
        return [{"role": "user", "content": f"Not yet. That was message {len(messages)}."}]


def load_environment():
    rows = [{"question": f"Guess my number, below {most}.", "answer": "3"} for most in (5, 10, 20)]
    return Guessing(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[said_something]), max_turns=3)
"""

COMMANDS = {"agents_sdk": AGENTS_SDK, "langgraph": LANGGRAPH, "smolagents": SMOLAGENTS}
PROMPT = {"questions": ["How many letters has harbour?", "And ferry?", "Which is longer?"], "example": 1}
