"""Damaged payloads: refused by the decoder or decoded to something that the digest tells apart, never out of bounds."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.weights.codec.blocks import Codec, Encoded, Mode, decode_block, encode_change, encode_whole
from trimtab.weights.codec.change import Bytes, find_change
from trimtab.weights.codec.streams import DamagedPayload, pack, unpack
from trimtab.weights.digests import block_digest
from trimtab.weights.layout import ELEMENT_TYPES

BF16 = ELEMENT_TYPES["BF16"]


def step_pair(rng: np.random.Generator, *, share: float) -> tuple[Bytes, Bytes]:
    base = (rng.standard_normal(20_000).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    target = base + (rng.random(base.size) < share)
    return base.view(np.uint8), target.astype(np.uint16).view(np.uint8)


def encoded(base: Bytes, target: Bytes, mode: Mode) -> Encoded:
    if mode is Mode.WHOLE:
        return encode_whole(target, BF16)
    change = find_change(base, target, width=2)
    assert change is not None
    made = encode_change(base, change, BF16, codec=Codec.COMPACT if mode is Mode.COMPACT else Codec.FAST)
    assert made.mode is mode
    return made


def is_noticed(mode: Mode, base: Bytes, payload: bytes, target: Bytes) -> bool:
    """By the decoder, or by the digest afterwards."""
    out = np.empty_like(base)
    try:
        decode_block(mode, base, payload, BF16, out)
    except DamagedPayload:
        return True
    return block_digest(out) != block_digest(target)


@pytest.mark.parametrize("mode", list(Mode))
def test_flipped_bits_are_noticed(mode: Mode) -> None:
    rng = np.random.default_rng(7)
    base, target = step_pair(rng, share=0.6 if mode is Mode.DENSE else 0.02)
    payload = encoded(base, target, mode).payload
    noticed = 0
    for bit in rng.integers(0, len(payload) * 8, 300):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << (bit % 8)
        noticed += is_noticed(mode, base, bytes(damaged), target)
    # zstd has a few bits without meaning; with those flipped the content is still right.
    assert noticed >= 297


@pytest.mark.parametrize("mode", list(Mode))
def test_any_cut_and_any_addition_is_refused(mode: Mode) -> None:
    rng = np.random.default_rng(8)
    base, target = step_pair(rng, share=0.6 if mode is Mode.DENSE else 0.02)
    payload = encoded(base, target, mode).payload
    out = np.empty_like(base)
    for length in [0, 1, 15, 16, 17, len(payload) // 2, len(payload) - 4, len(payload) - 1]:
        with pytest.raises(DamagedPayload):
            decode_block(mode, base, payload[:length], BF16, out)
    with pytest.raises(DamagedPayload):
        decode_block(mode, base, payload + b"\0\0\0\0", BF16, out)


@pytest.mark.parametrize("mode", list(Mode))
def test_noise_is_refused_and_never_leaves_the_block(mode: Mode) -> None:
    rng = np.random.default_rng(9)
    base, target = step_pair(rng, share=0.02)
    for length in rng.integers(0, 4000, 200):
        assert is_noticed(mode, base, rng.bytes(int(length)), target)


@pytest.mark.parametrize("mode", [Mode.FAST, Mode.COMPACT, Mode.DENSE])
def test_a_wrong_base_does_not_give_the_target(mode: Mode) -> None:
    rng = np.random.default_rng(10)
    base, target = step_pair(rng, share=0.6 if mode is Mode.DENSE else 0.02)
    payload = encoded(base, target, mode).payload
    other = base.copy()
    other[1000] ^= 0x40
    out = np.empty_like(base)
    try:
        decode_block(mode, other, payload, BF16, out)
    except DamagedPayload:
        return
    assert block_digest(out) != block_digest(target)


def test_a_delta_without_its_base_is_refused() -> None:
    with pytest.raises(DamagedPayload, match="needs the block"):
        decode_block(Mode.FAST, None, b"", BF16, np.empty(8, dtype=np.uint8))


def test_compact_is_refused_for_types_without_an_exponent() -> None:
    block = np.zeros(8, dtype=np.uint8)
    with pytest.raises(DamagedPayload, match="16-bit floats"):
        decode_block(Mode.COMPACT, block, b"", ELEMENT_TYPES["I16"], block.copy())


def test_a_stream_that_claims_too_much_allocates_nothing() -> None:
    payload = pack([np.zeros(1000, dtype=np.uint8)])
    with pytest.raises(DamagedPayload, match="claims 1000 bytes"):
        unpack(payload, limits=[999])
    with pytest.raises(DamagedPayload, match="follow the last"):
        unpack(payload + b"x", limits=[1000])
