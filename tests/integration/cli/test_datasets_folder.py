"""Rows as a folder of Hugging Face's `datasets`, by the library itself in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli.datasets_environment import datasets_packages

_PROGRAM = """
import json, sys
from pathlib import Path
from tests.support.cli.rows import conversation, make_tokenizer
from trimtab.cli.samples.choice import StoredRow
from trimtab.cli.samples.export import record_of, writer_to
from trimtab.cli.samples.pieces import pieces
from trimtab.cli.samples.tokenizers import Tokenizers
from trimtab.fabric.wire.header import TrajectoryHeader

folder = Path(sys.argv[1])
make_tokenizer(folder / "tokenizer")
decode = Tokenizers(named=folder / "tokenizer", known={}).decode("solver")
for number in (1, 2):  # the second takes the first one's place
    with writer_to(folder / "rows") as writer:
        for _ in range(number):
            row = conversation(reward_parts={"answer": 1.0})
            stored = StoredRow(sequence=1, trajectory_id=row.trajectory_id, header=TrajectoryHeader.of(row), step=41)
            writer.add(record_of(stored, row, pieces(row, decode)))
import datasets
rows = datasets.load_from_disk(str(folder / "rows"))
print(json.dumps([len(rows), rows[0]]))
"""


@pytest.mark.slow
def test_a_folder_of_rows_is_loaded_by_datasets(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(root), str(datasets_packages())]),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "cache"),
    }
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr[-3000:]
    count, first = json.loads(run.stdout.splitlines()[-1])
    assert count == 2
    assert (first["step"], first["reward"], first["reward_parts"]) == (41, 0.75, [{"name": "answer", "reward": 1.0}])
    assert first["pieces"][1]["text"] == " four<|end|>"
