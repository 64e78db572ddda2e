"""What `trimtab run` makes of a manifest that was changed since the run that it goes on from."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from trimtab.cli.run import changed_since
from trimtab.fabric.pod import read_job
from trimtab.operator.local.state_files import MANIFEST_FILE

MANIFEST = """
apiVersion: rl.trimtab.dev/v1alpha1
kind: RLJob
metadata: {name: sums}
spec:
  maxSteps: 10
  workflow: {entrypoint: "trimtab.rollout.workflows.single_turn:SingleTurn"}
  data: {prompts: [{name: p, jsonl: {uri: p.jsonl}}], groupSize: GROUP, batchSize: 32}
  policies: [{name: solver, model: {uri: model}, algorithm: {optimizer: {learningRate: RATE}}}]
  pools: [{name: local, replicas: 1}]
"""


def written(file: Path, *, group: int = 8, rate: str = "1.0e-3") -> Path:
    file.write_text(MANIFEST.replace("GROUP", str(group)).replace("RATE", rate))
    return file


def test_a_changed_learning_rate_is_told(tmp_path: Path) -> None:
    written(tmp_path / MANIFEST_FILE)
    after = read_job(written(tmp_path / "job.yaml", rate="5.0e-4"))
    assert changed_since(after, tmp_path) == ("policies[solver].algorithm.optimizer.learningRate 0.001 → 0.0005",)


def test_what_the_run_before_cannot_go_on_with_is_refused_by_name(tmp_path: Path) -> None:
    written(tmp_path / MANIFEST_FILE)
    after = read_job(written(tmp_path / "job.yaml", group=4))
    with pytest.raises(click.ClickException) as refused:
        changed_since(after, tmp_path)
    assert "spec.data.groupSize: groupSize is immutable: groups in flight would break" in refused.value.message
    assert "--fresh" in refused.value.message


def test_a_first_run_has_nothing_to_compare_with(tmp_path: Path) -> None:
    assert changed_since(read_job(written(tmp_path / "job.yaml")), tmp_path / "none") == ()
