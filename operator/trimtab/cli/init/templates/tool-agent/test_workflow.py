"""The workflow with lines in place of a model."""

import asyncio

from workflow import ToolAgent, calculated

from trimtab.rollout.workflows.rehearsal import Script, rehearse

PROMPT = {"prompt": "What is 17 + 25?", "answer": "42"}


def test_it_reads_what_the_tool_says_and_answers() -> None:
    script = Script("<calculate>17 + 25</calculate>", "42")
    episode = asyncio.run(rehearse(ToolAgent(), PROMPT, scripts={"solver": script}))
    assert episode.scored[0].reward == 1.0
    assert episode.scored[0].reward_parts == {"right": 1.0, "calls": 1.0}
    assert script.heard[-1].endswith("<result>42</result>\n")


def test_it_ends_without_an_answer_after_its_turns() -> None:
    script = Script(*["<calculate>1 + 1</calculate>"] * 4)
    episode = asyncio.run(rehearse(ToolAgent(max_turns=4), PROMPT, scripts={"solver": script}))
    assert episode.scored[0].reward == 0.0


def test_the_tool_calculates_and_runs_nothing() -> None:
    assert calculated("6 * 7") == "42"
    assert calculated("__import__('os')") == "cannot be calculated"
