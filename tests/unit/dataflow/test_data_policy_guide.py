"""docs/data-policies.md: its manifests are valid and its code does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.support.dataflow.books import GROUP, Feed, header, ledger
from tests.support.dataflow.curator_events import events, feed, through_the_ledger
from tests.support.dataflow.finished_groups import finished
from tests.support.dataflow.jobs import spec
from trimtab.api.scalars import Plugin
from trimtab.dataflow.curators.registry import make_curator
from trimtab.dataflow.filters import make_filter
from trimtab.dataflow.ledger.records import StepGranted
from trimtab.dataflow.selection.contract import Selection
from trimtab.dataflow.selection.registry import make_selection

GUIDE = Path(__file__).parents[3] / "docs" / "data-policies.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_every_manifest_in_the_guide_is_valid() -> None:
    manifests = [yaml.safe_load(block) for block in blocks("yaml")]
    shown = [spec(policies=2, data=manifest["data"]).data for manifest in manifests]
    assert set().union(*(data.curator.model_fields_set for data in shown)) == {"greso", "curriculum", "custom"}
    assert any(data.filter.length is not None for data in shown)
    assert any(data.mix for data in shown)
    assert any(data.replay is not None for data in shown)


def test_the_code_in_the_guide_runs_and_its_classes_are_taken_from_the_manifest() -> None:
    namespace: dict[str, Any] = {"__name__": "my_data"}
    for block in blocks("python"):
        exec(compile(block, str(GUIDE), "exec"), namespace)
    custom: dict[str, Any] = {}
    for manifest in map(yaml.safe_load, blocks("yaml")):
        if "my_data:" in str(manifest):
            custom |= manifest["data"]

    def load(plugin: Plugin) -> object:
        module, _, name = plugin.entrypoint.partition(":")
        assert module == "my_data"
        return namespace[name](**plugin.args)

    data = spec(data=custom).data
    curator = make_curator(data.curator, prompts=None, load=load)
    assert data.curator.custom is not None
    happened = list(events(9, 300))
    feed(curator, happened[:150])
    resumed = make_curator(data.curator, prompts=None, load=load)
    resumed.restore(through_the_ledger(curator.state()))
    feed(curator, happened[150:])
    feed(resumed, happened[150:])
    assert resumed.state() == curator.state()
    kept = make_filter(data.filter, load=load).kept(finished("a", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)))
    assert kept == {(index, 0) for index in (0, 1, 4, 5)}
    check_selection_of_the_guide(make_selection(data, policies=["solver"], load=load))


def check_selection_of_the_guide(selection: Selection) -> None:
    """Ten groups for two places and eight spare ones: the two with the most varied rewards go first."""
    books = Feed(ledger(selection=selection))
    books.issue(10)
    for task in range(10):
        assert books.ledger.propose("solver", now=1.0) is None
        for index in range(GROUP):
            books.arrive(header(task, index, reward=float(index and task in (3, 8))))
    granted = books.ledger.propose("solver", now=1.0)
    assert isinstance(granted, StepGranted)
    assert granted.groups == ("t3.solver", "t8.solver")
