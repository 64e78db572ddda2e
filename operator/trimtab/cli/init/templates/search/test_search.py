"""An episode with lines in place of a model, over the corpus that the job has."""

import asyncio
import json
from pathlib import Path

from trimtab.rollout.workflows.rehearsal import Script, rehearse
from trimtab.rollout.workflows.search_qa import SearchQA

FOLDER = Path(__file__).parent


def test_what_is_asked_for_can_be_found() -> None:
    row = json.loads((FOLDER / "held-out.jsonl").read_text().splitlines()[0])
    name = row["prompt"].removeprefix("Where does ").removesuffix(" live?")
    workflow = SearchQA(search={"corpus": "corpus.jsonl", "results": 3}, reward="f1")
    workflow.read_from(FOLDER)
    script = Script(f"<search>{name}</search>", f"<answer>{row['answer']}</answer>")
    episode = asyncio.run(rehearse(workflow, row, scripts={"solver": script}))
    assert episode.scored[0].reward == 1.0
    assert f"{name} lives in {row['answer']}." in script.heard[-1]
