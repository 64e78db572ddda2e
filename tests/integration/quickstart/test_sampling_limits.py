"""A whole job that samples with every limit there is, on a tokenizer of its own: engine and trainer agree on every
token's probability.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.quickstart_job import make_quickstart, trained_steps

pytestmark = pytest.mark.slow

_STEPS = 3
_AGREED = 1e-4
"""Both compute in float32. Left out by one of them alone, a tenth of the probability would be 0.1."""


def test_engine_and_trainer_agree_on_what_was_sampled_from(tmp_path: Path) -> None:
    file = make_quickstart(tmp_path, name="limits", max_steps=_STEPS, batchSize=64)
    (tmp_path / "words").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "model" / name).rename(tmp_path / "words" / name)
    manifest = yaml.safe_load(file.read_text())
    (policy,) = manifest["spec"]["policies"]
    policy["model"] |= {"tokenizer": "words", "maxContextTokens": 12}
    policy["sampling"] = {"temperature": 0.8, "topK": 8, "topP": 0.7, "minP": 0.02, "maxTokens": 20, "stop": ["7"]}
    file.write_text(yaml.safe_dump(manifest))
    steps = trained_steps(file)
    assert len(steps) == _STEPS
    fresh = [step["logprob_mismatch"] for step in steps if step["logprob_mismatch"] is not None]
    assert fresh, "no step had samples of its own weights"
    assert max(fresh) < _AGREED
    # Between the prompt and twelve tokens there is room for a few, not for twenty.
    assert all(64 < step["tokens"] <= 64 * 11 for step in steps)
