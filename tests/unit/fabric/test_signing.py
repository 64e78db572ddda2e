"""Only what a trusted key has signed is verified, and no private key shows up in a text."""

from __future__ import annotations

import base64

import pytest

from trimtab.fabric.signing import InvalidSigningKey, Signer, Verifier, WrongSignature


def test_a_signer_made_from_its_seed_is_the_same_signer() -> None:
    signer = Signer.generate()
    again = Signer(signer.reveal_seed() + "\n")
    assert again.public_text == signer.public_text
    Verifier([again.public_text]).verify(signer.sign(b"weights"), b"weights")
    assert Signer.generate().public_text != signer.public_text


def test_every_key_of_a_rotation_is_trusted_and_no_other() -> None:
    old, new, stranger = Signer.generate(), Signer.generate(), Signer.generate()
    verifier = Verifier([old.public_text, new.public_text])
    for signer in (old, new):
        verifier.verify(signer.sign(b"weights"), b"weights")
    with pytest.raises(WrongSignature, match="2 trusted keys"):
        verifier.verify(stranger.sign(b"weights"), b"weights")
    with pytest.raises(WrongSignature):
        verifier.verify(new.sign(b"weights"), b"weight5")


def test_the_private_key_shows_in_no_text() -> None:
    signer = Signer.generate(entropy=lambda count: b"\x07" * count)
    seed = signer.reveal_seed()
    assert base64.b64decode(seed) == b"\x07" * 32
    for text in (repr(signer), str(signer), f"{signer}", repr([signer])):
        assert seed not in text
        assert signer.public_text in text


@pytest.mark.parametrize("text", ["", "%%%", "c2hvcnQ=", base64.b64encode(b"x" * 33).decode()], ids=str)
def test_what_is_no_key_is_refused_without_repeating_it(text: str) -> None:
    for make in (Signer, lambda key: Verifier([key])):
        with pytest.raises(InvalidSigningKey) as refused:
            make(text)
        assert not text or text not in str(refused.value)


def test_a_verifier_without_keys_is_refused() -> None:
    with pytest.raises(InvalidSigningKey, match="at least one"):
        Verifier([])
