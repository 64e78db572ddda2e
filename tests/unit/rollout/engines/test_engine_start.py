"""How an engine starts: `config.json` means what transformers takes it to mean; what cannot be served is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from trimtab.fabric.pod import EXIT_MISCONFIGURED
from trimtab.rollout.engines.builtin.__main__ import run
from trimtab.rollout.engines.builtin.architecture import UnsupportedModelError, read_architecture

SIZE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
SCALED = {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZE),
        LlamaConfig(**SIZE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, eos_token_id=[5, 7]),
        LlamaConfig(
            **SIZE, head_dim=32, rms_norm_eps=1e-5, rope_parameters={"rope_theta": 5e5, "rope_type": "default"}
        ),
        LlamaConfig(**SIZE, rope_parameters={"rope_theta": 1e6, **SCALED}),
        Qwen2Config(**SIZE, eos_token_id=9),
        Qwen2Config(**SIZE, use_sliding_window=True, max_window_layers=3),
        Qwen3Config(**SIZE, attention_bias=True),
        Qwen3Config(**SIZE, head_dim=16, tie_word_embeddings=True),
    ],
    ids=["plain", "biases", "head size", "scaled", "qwen2", "window beyond the layers", "qwen3", "qwen3 tied"],
)
def test_a_saved_config_is_read_as_transformers_reads_it(config: PreTrainedConfig, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    assert_same(tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "llama", "num_key_value_heads": None},
        {"model_type": "llama", "rope_theta": 5e5},
        {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": None, "eos_token_id": None},
        {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"model_type": "qwen2", "rope_theta": 1e6, "sliding_window": 4096, "use_sliding_window": False},
        {"model_type": "qwen3", "rope_theta": 1e6},
    ],
    ids=["ungrouped heads", "theta", "no scaling", "scaling by its old name", "qwen2", "qwen3"],
)
def test_a_config_of_former_years_is_read_as_transformers_reads_it(fields: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZE, **fields}))
    assert_same(tmp_path)


def assert_same(folder: Path) -> None:
    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
    read = read_architecture(folder)
    assert (read.family, read.vocabulary, read.hidden) == (config.model_type, config.vocab_size, config.hidden_size)
    assert (read.heads, read.kv_heads) == (config.num_attention_heads, config.num_key_value_heads)
    assert read.head_size == (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    assert (read.norm_epsilon, read.tied) == (config.rms_norm_eps, config.tie_word_embeddings)
    assert read.output_bias == getattr(config, "attention_bias", False)
    assert read.qkv_bias == (read.output_bias or config.model_type == "qwen2")
    assert read.mlp_bias == getattr(config, "mlp_bias", False)
    eos = config.eos_token_id
    assert read.eos_ids == set([eos] if isinstance(eos, int) else eos or ())
    theta, factor = config.rope_parameters["rope_theta"], config.rope_parameters.get("factor", 1.0)
    expected = [theta ** (-2 * number / read.head_size) / factor for number in range(read.head_size // 2)]
    assert read.rotary_frequencies == pytest.approx(expected, rel=1e-5)


def test_a_field_that_is_missing_or_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZE, "model_type": "llama", "hidden_size": "wide"}))
    with pytest.raises(UnsupportedModelError, match="hidden_size"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(UnsupportedModelError, match="vocab_size"):
        read_architecture(tmp_path)


def test_where_generation_ends_may_be_said_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZE, "model_type": "qwen2", "eos_token_id": 1}))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    assert read_architecture(tmp_path).eos_ids == {1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "heavy"),
    [("trimtab.rollout.engines.builtin.__main__", "transformers"), ("trimtab.rollout.__main__", "torch")],
    ids=["engine", "worker"],
)
def test_a_pod_does_not_wait_for_imports_that_it_does_not_need(module: str, heavy: str) -> None:
    look = f"import sys, {module}; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0


@pytest.mark.parametrize(
    ("argument", "named"),
    [("--tp-size=2", "--tp-size"), ("--device=cuda", "torch sees no GPU")],
    ids=["flag", "device"],
)
def test_an_argument_that_no_restart_mends_ends_the_engine_for_good(
    argument: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["engine", argument, f"--model-path={tmp_path}", "--port=1"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == EXIT_MISCONFIGURED
    said = capsys.readouterr().err
    assert "pools[].engine" in said
    assert named in said


def test_a_checkpoint_that_no_restart_mends_ends_the_process_for_good(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZE, "model_type": "gpt2"}))
    command = [sys.executable, "-m", "trimtab.rollout.engines.builtin", f"--model-path={tmp_path}", "--port=1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == EXIT_MISCONFIGURED
    assert "pools[].engine" in done.stderr
    assert "model_type 'gpt2'" in done.stderr
