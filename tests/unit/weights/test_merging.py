"""Adapters merged into their model: exact in float32 and rounded once; what does not belong to it is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from trimtab.weights.adapters import CONFIG_FILE, PREFIX, WEIGHTS_FILE, Adapter, InvalidAdapter, write_peft_folder
from trimtab.weights.merging import merge_into

ADAPTER = Adapter(rank=2, alpha=3.0, targets=("q_proj",), base="model")
NAME = "model.layers.0.self_attn.q_proj"


def make(folder: Path, dtype: torch.dtype, *, metadata: dict[str, str] | None = None) -> tuple[Path, Path]:
    """A model of one projection and something that stays, and adapters for it."""
    generator = torch.Generator().manual_seed(0)
    model = {
        f"{NAME}.weight": torch.randn(64, 48, generator=generator).to(dtype),
        "model.norm.weight": torch.randn(48, generator=generator).to(dtype),
    }
    adapters = {
        f"{PREFIX}{NAME}.lora_A.weight": torch.randn(2, 48, generator=generator).to(torch.bfloat16),
        f"{PREFIX}{NAME}.lora_B.weight": torch.randn(64, 2, generator=generator).to(torch.bfloat16),
    }
    (folder / "model").mkdir(parents=True)
    save_file(model, folder / "model" / "model.safetensors", metadata={"format": "pt"})
    (folder / "model" / "config.json").write_text("{}")
    save_file(adapters, folder / "adapters.safetensors", metadata=ADAPTER.metadata() if metadata is None else metadata)
    return folder / "model", folder / "adapters.safetensors"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_merged_weights_are_the_sum_rounded_once(tmp_path: Path, dtype: torch.dtype) -> None:
    model, adapters = make(tmp_path, dtype)
    merge_into(model, adapters, tmp_path / "merged")
    before, merged = load_file(model / "model.safetensors"), load_file(tmp_path / "merged" / "model.safetensors")
    made = load_file(adapters)
    down, up = (made[f"{PREFIX}{NAME}.{matrix}.weight"].float().numpy() for matrix in ("lora_A", "lora_B"))
    exact = before[f"{NAME}.weight"].float().numpy() + np.float32(1.5) * (up @ down)
    assert torch.equal(merged[f"{NAME}.weight"], torch.from_numpy(exact).to(dtype))
    assert torch.equal(merged["model.norm.weight"], before["model.norm.weight"])
    assert (tmp_path / "merged" / "config.json").read_text() == "{}"


def test_what_does_not_belong_to_the_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model, adapters = make(tmp_path, torch.float32)
    other = tmp_path / "other"
    other.mkdir()
    save_file({f"{NAME}.weight": torch.zeros(32, 48)}, other / "model.safetensors")
    with pytest.raises(InvalidAdapter, match=r"q_proj.weight of shape \[64, 48\].*the job began with"):
        merge_into(other, adapters, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    with pytest.raises(InvalidAdapter, match="take another folder"):
        merge_into(model, adapters, model)


def test_whole_weights_and_strange_descriptions_are_no_adapters(tmp_path: Path) -> None:
    model, _ = make(tmp_path / "plain", torch.float32)
    for made in (model / "model.safetensors", make(tmp_path / "none", torch.float32, metadata={"format": "pt"})[1]):
        with pytest.raises(InvalidAdapter, match="of a whole model"):
            write_peft_folder(made, tmp_path / "folder")
    for said in ('{"rank": 0}', "nothing", '{"rank": 2, "alpha": 1.0, "targets": ["q_proj"], "base": "m", "more": 1}'):
        _, strange = make(tmp_path / str(hash(said)), torch.float32, metadata={"trimtab.adapter": said})
        with pytest.raises(InvalidAdapter, match="cannot be read"):
            write_peft_folder(strange, tmp_path / "folder")


def test_a_folder_for_peft_has_the_weights_as_they_are_and_what_they_are(tmp_path: Path) -> None:
    _, adapters = make(tmp_path, torch.float32)
    assert write_peft_folder(adapters, tmp_path / "folder") == ADAPTER
    assert (tmp_path / "folder" / WEIGHTS_FILE).read_bytes() == adapters.read_bytes()
    config = (tmp_path / "folder" / CONFIG_FILE).read_text()
    for said in ('"r": 2', '"lora_alpha": 3.0', '"q_proj"', '"peft_type": "LORA"'):
        assert said in config
