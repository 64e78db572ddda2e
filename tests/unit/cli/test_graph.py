"""What `trimtab graph` shows of a job, and that the manifests of docs/graphs.md are ones that it can show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.support.api.manifests import Manifest, changed, job, staged_job
from trimtab.api.job import RLJob
from trimtab.api.review import review
from trimtab.api.validation import parse
from trimtab.cli.graph import graph
from trimtab.cli.graph.drawing import svg_of
from trimtab.cli.graph.nodes import Graph, graph_of

_DOCS = Path(__file__).parents[3] / "docs" / "graphs.md"
_SVG = "{http://www.w3.org/2000/svg}"

STAGED = """\
RLJob staged
prompts          train; groups of 8                       @ dataflow
  -> role solver: tasks
role solver      policy solver                            @ pool home (2 pods, builtin)
  -> stage reference: rows
  -> stage values: rows
  -> buffer solver: rows
stage reference  Logprobs by policy reference, of solver  @ pool spot (1 pod, builtin)
  -> buffer solver: logprobs
  -> stage judge: logprobs
stage values     Values by policy critic, of solver       @ pool home (2 pods, builtin)
  -> buffer solver: values
stage judge      Reward by team.judges:Own, of solver     @ pool home (2 pods, builtin)
  -> buffer solver: rewards
buffer solver    staleness up to 8                        @ dataflow
  -> trainer solver: batches
  -> trainer critic: batches
trainer solver   m2po, batches of 256                     @ trainer, 1 rank
  -> weights solver: versions
trainer critic   m2po, batches of 256                     @ trainer, 1 rank
  -> weights critic: versions
weights solver   a version each step                      @ object storage
  -> role solver: weights (back)
weights critic   a version each step                      @ object storage
  -> stage values: weights (back)
"""
PLAIN = """\
RLJob arithmetic
prompts           train; groups of 8           @ dataflow
  -> role solver: tasks
  -> role verifier: tasks
role solver       policy solver                @ pool home (2 pods, builtin), pool spot (1 pod, builtin)
  -> buffer solver: rows
role verifier     policy verifier, frozen      @ pool home (2 pods, builtin), pool spot (1 pod, builtin)
buffer solver     filter, staleness up to 8    @ dataflow
  -> trainer solver: batches
trainer solver    m2po, batches of 256         @ trainer, 1 rank
  -> weights solver: versions
weights solver    a version each step          @ object storage
  -> role solver: weights (back)
"""


def shown(tmp_path: Path, manifest: Manifest, *options: str) -> Result:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(manifest))
    return CliRunner().invoke(graph, [str(file), *options])


def graph_in(manifest: Manifest) -> Graph:
    parsed = parse(manifest)
    assert isinstance(parsed, RLJob)
    return graph_of(parsed)


def test_a_job_with_stages_as_text(tmp_path: Path) -> None:
    assert shown(tmp_path, staged_job()).output == STAGED


def test_a_job_without_stages_as_text(tmp_path: Path) -> None:
    plain = changed(job(), {"spec.policies.1.frozen": True, "spec.data.filter": {"zeroAdvantage": "Drop"}})
    output = shown(tmp_path, plain).output
    assert [line.split() for line in output.splitlines()] == [line.split() for line in PLAIN.splitlines()]


def test_a_drawing_has_every_node_and_what_every_edge_carries(tmp_path: Path) -> None:
    result = shown(tmp_path, staged_job(), "--svg", str(tmp_path / "graph.svg"))
    assert result.exit_code == 0, result.output
    drawn = ElementTree.fromstring((tmp_path / "graph.svg").read_text())
    data = graph_in(staged_job())
    texts = [text.text for text in drawn.iter(f"{_SVG}text")]
    assert [text for text in texts if text in {node.title for node in data.nodes}] == [n.title for n in data.nodes]
    assert len(list(drawn.iter(f"{_SVG}path"))) == len(data.edges)
    assert sorted(text for text in texts if text in {edge.carries for edge in data.edges}) == sorted(
        edge.carries for edge in data.edges
    )
    boxes = {(rect.get("x"), rect.get("y")) for rect in drawn.iter(f"{_SVG}rect")}
    assert len(boxes) == len(data.nodes), "boxes lie on one another"
    width, height = float(drawn.get("width") or 0), float(drawn.get("height") or 0)
    assert all(float(x or 0) < width and float(y or 0) < height for x, y in boxes)


def test_data_never_flows_back_except_as_weights() -> None:
    data = graph_in(staged_job())
    back = [edge for edge in data.edges if data.layer_of(edge.target) <= data.layer_of(edge.source)]
    assert {edge.carries for edge in back} == {"weights"}


def test_a_manifest_that_is_not_valid_is_refused_by_field(tmp_path: Path) -> None:
    result = shown(tmp_path, changed(staged_job(), {"spec.stages.0.needs": ["judge"]}))
    assert result.exit_code != 0
    assert "spec.stages: stages[].needs must name stages that stand earlier" in result.output


@pytest.mark.parametrize("name", ["distflow-ppo", "asyncflow-grpo"])
def test_the_figures_in_the_documentation_are_manifests(name: str) -> None:
    blocks = re.findall(r"```yaml\n(apiVersion.*?)```", _DOCS.read_text(), re.DOTALL)
    (manifest,) = [value for block in blocks if (value := yaml.safe_load(block))["metadata"]["name"] == name]
    assert review(manifest).problems == ()
    data = graph_in(manifest)
    assert {f"stage {stage['name']}" for stage in manifest["spec"]["stages"]} <= {node.id for node in data.nodes}
    ElementTree.fromstring(svg_of(data))
