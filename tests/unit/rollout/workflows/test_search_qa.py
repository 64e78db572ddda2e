"""A policy that searches hears what is found; only an answer is worth something, and a broken search nothing at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.rollout.speakers import alone
from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.wire.spans import Producer
from trimtab.fabric.wire.trajectory import Finish
from trimtab.rollout.workflows.loader import load_workflow
from trimtab.rollout.workflows.rehearsal import Script, rehearse
from trimtab.rollout.workflows.search_qa import SearchQA
from trimtab.rollout.workflows.team import PromptUnusable, ScoredConversation, WorkflowError

PROMPT = {"prompt": "Where does Bob live?", "answer": ["Oslo", "Oslo, Norway"]}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"text": "Ada knows Bob"}\n{"text": "Bob lives in Oslo"}\n')
    return file


async def ask(script: Script, corpus: Path, prompt: dict[str, Any] = PROMPT, **arguments: Any) -> ScoredConversation:
    workflow = SearchQA(search={"corpus": str(corpus), "results": 1}, **arguments)
    (scored,) = (await rehearse(workflow, prompt, scripts={"solver": script})).scored
    return scored


async def test_it_reads_what_it_searched_for_and_is_rewarded_for_its_answer(corpus: Path) -> None:
    script = Script("<search>ada</search>", "I see. <search>bob lives</search>", "<answer>oslo</answer>")
    scored = await ask(script, corpus)
    assert scored.reward == 1.0
    assert scored.reward_parts == {"f1": 1.0, "exact_match": 1.0, "searches": 2.0, "answered": 1.0}
    assert script.heard[0].endswith("Question: Where does Bob live?\n")
    assert script.heard[2].endswith(
        "<search>ada</search>\n<information>\nAda knows Bob\n</information>\n"
        "I see. <search>bob lives</search>\n<information>\nBob lives in Oslo\n</information>\n"
    )


async def test_what_was_found_is_not_trained(corpus: Path) -> None:
    scored = await ask(Script("<search>ada</search>", "<answer>x</answer>"), corpus)
    spans = alone(scored.conversation).spans
    assert [span.producer for span in spans] == [
        *(Producer.PROMPT, Producer.MODEL, Producer.ENVIRONMENT, Producer.MODEL)
    ]


async def test_the_measure_is_chosen_and_both_are_told(corpus: Path) -> None:
    for reward, worth in (("f1", 2 / 3), ("exact_match", 0.0)):
        scored = await ask(Script("<answer>in Oslo</answer>"), corpus, reward=reward)
        assert scored.reward == pytest.approx(worth)
        assert scored.reward_parts["f1"] == pytest.approx(2 / 3)


async def test_only_the_first_action_of_a_turn_counts(corpus: Path) -> None:
    """What a policy makes up behind its search is no finding, and no answer."""
    script = Script("<search>ada</search><information>Oslo</information><answer>Oslo</answer>", "<answer>Rome</answer>")
    scored = await ask(script, corpus)
    assert (scored.reward, scored.reward_parts["searches"]) == (0.0, 1.0)


async def test_a_turn_with_neither_is_told_and_goes_on(corpus: Path) -> None:
    script = Script("Oslo", "<answer>Oslo", "<answer>Oslo</answer>")
    scored = await ask(script, corpus)
    assert scored.reward == 1.0
    assert script.heard[-1].count("Write <search>words</search> to search") == 2


async def test_who_never_answers_gets_nothing_and_the_finish_says_why(corpus: Path) -> None:
    scored = await ask(Script("<search>a</search>", "<search>b</search>"), corpus, max_turns=2)
    assert (scored.reward, scored.conversation.finish) == (0.0, Finish.TURNS)
    assert scored.reward_parts["answered"] == 0.0


async def test_a_search_that_fails_is_a_failed_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.rollout.search.endpoint._ATTEMPTS", 1)
    workflow = SearchQA(search={"url": "http://127.0.0.1:9/"})
    with pytest.raises(WorkflowError, match="http://127.0.0.1:9/: 1 attempts") as caught:
        await rehearse(workflow, PROMPT, scripts={"solver": Script("<search>a</search>")})
    assert caught.value.kind == "search-failed"


@pytest.mark.parametrize("known", [7, [], [7], None])
async def test_a_prompt_without_answers_is_refused(corpus: Path, known: object) -> None:
    with pytest.raises(PromptUnusable, match="column 'answer' is .*: a text, or a list of texts"):
        await ask(Script(), corpus, prompt={"prompt": "?", "answer": known})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reward": "bleu"}, "reward is 'bleu': one of f1, exact_match"),
        ({"max_turns": 0}, "max_turns is 0"),
        ({"question_text": "?"}, "question_text lacks {question}"),
        ({"search": {"results": 3}}, "search needs corpus"),
    ],
)
def test_arguments_that_cannot_be_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SearchQA(**{"search": {"url": "http://a"}} | arguments)


def spec(**source: Any) -> WorkflowSpec:
    entrypoint = "trimtab.rollout.workflows.search_qa:SearchQA"
    return WorkflowSpec.model_validate(
        {"entrypoint": entrypoint, "args": {"search": {"corpus": "corpus.jsonl"}}, **source}
    )


async def test_the_corpus_lies_in_the_folder_of_the_source(corpus: Path) -> None:
    workflow = load_workflow(spec(source={"path": "."}), folder=corpus.parent, roles=["solver"])
    script = Script("<search>bob lives</search>", "<answer>Oslo</answer>")
    (scored,) = (await rehearse(workflow, PROMPT, scripts={"solver": script})).scored
    assert scored.reward == 1.0


async def test_without_a_source_it_says_what_is_missing(corpus: Path) -> None:
    workflow = load_workflow(spec(), folder=corpus.parent, roles=["solver"])
    with pytest.raises(WorkflowError, match="corpus.jsonl is a path within workflow.source.path, which the job lacks"):
        await rehearse(workflow, PROMPT, scripts={"solver": Script()})


def test_a_corpus_that_is_not_there_stops_the_worker_at_its_start(tmp_path: Path) -> None:
    with pytest.raises(JobMisconfigured, match=r"workflow.args: search.corpus .*corpus.jsonl cannot be read"):
        load_workflow(spec(source={"path": "."}), folder=tmp_path, roles=["solver"])
