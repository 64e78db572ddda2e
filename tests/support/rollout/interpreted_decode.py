"""`python -m tests.support.rollout.interpreted_decode`: a step whose rows are found by their addresses computes what
one over views of the arenas does. The kernels run by Triton's interpreter, which must be asked for before anything
imports Triton: hence a process of its own.
"""

from __future__ import annotations

import torch

from trimtab.rollout.engines.builtin.architecture import Architecture
from trimtab.rollout.engines.builtin.graphed_decode import bucket_sizes, row_places
from trimtab.rollout.engines.builtin.kv_rows import KvRows, KvShape
from trimtab.rollout.engines.builtin.transformer import Transformer
from trimtab.rollout.engines.builtin.weights import ServedWeights

_CPU = torch.device("cpu")
_STEPS = 2


def _architecture(*, layers: int, heads: int, kv_heads: int, head_size: int, qk_norm: bool = False) -> Architecture:
    return Architecture(
        family="llama", vocabulary=50, hidden=heads * head_size, intermediate=48, layers=layers, heads=heads,
        kv_heads=kv_heads, head_size=head_size, norm_epsilon=1e-6, qkv_bias=False, output_bias=False, mlp_bias=False,
        qk_norm=qk_norm, tied=True, max_length=512, rotary_scale=1.0, eos_ids=frozenset(),
        rotary_frequencies=tuple(10_000.0 ** (-2 * n / head_size) for n in range(head_size // 2)),
    )  # fmt: skip


def _filled(shape: KvShape, lengths: tuple[int, ...], seed: int) -> KvRows[int]:
    generator = torch.Generator().manual_seed(seed)
    rows: KvRows[int] = KvRows(shape)
    for number, length in enumerate(lengths):
        size = (shape.layers, 2, shape.kv_heads, length, shape.head_size)
        rows.open(number, torch.randn(size, generator=generator))
    return rows


@torch.inference_mode()
def check(architecture: Architecture, lengths: tuple[int, ...]) -> None:
    """Several steps, so that what one step keeps is what the next one reads."""
    torch.manual_seed(0)
    weights = ServedWeights(architecture, device=_CPU, dtype=torch.float32)
    for tensor in weights.named.values():
        tensor.normal_(0, 0.3)
    transformer = Transformer(architecture, device=_CPU, dtype=torch.float32)
    shape = KvShape(
        layers=architecture.layers, kv_heads=architecture.kv_heads, head_size=architecture.head_size,
        max_length=architecture.max_length, device=_CPU, dtype=torch.float32,
    )  # fmt: skip
    views, places = (_filled(shape, lengths, seed=1) for _ in range(2))
    for step in range(_STEPS):
        tokens = [(7 * step + 3 * number) % architecture.vocabulary for number in range(len(lengths))]
        wanted = transformer.decode(weights, views.arenas, tokens)
        inputs = torch.tensor(row_places(tokens, places.arenas))
        torch.testing.assert_close(transformer.decode_in_place(weights, inputs[0], inputs[1:]), wanted)
        for row in (*views.rows, *places.rows):
            row.length += 1
    for here, there in zip(views.rows, places.rows, strict=True):
        torch.testing.assert_close(here.content, there.content)


def main() -> None:
    # One row, whose attention is split; rows of several arenas; more rows than are split; and odd sizes of heads.
    check(_architecture(layers=2, heads=4, kv_heads=2, head_size=16), (200,))
    check(_architecture(layers=1, heads=3, kv_heads=1, head_size=24, qk_norm=True), (1, 61, 70, 200))
    check(_architecture(layers=1, heads=8, kv_heads=8, head_size=16), (5,) * 33)
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(40) == [1, 2, 4, 8, 16, 24, 32, 40]
    assert bucket_sizes(64) == [1, 2, 4, 8, 16, 24, 32, 48, 64]


if __name__ == "__main__":
    main()
