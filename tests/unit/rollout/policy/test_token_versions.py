"""An engine is believed about its weights as far as it was given them."""

from __future__ import annotations

import pytest

from trimtab.fabric.wire.spans import model_span
from trimtab.rollout.engines.contract import Generated, WeightRun
from trimtab.rollout.token_versions import spans_of, token_versions
from trimtab.rollout.weight_labels import BASE, label_of, position_of
from trimtab.weights.store.position import Position

OLD, NEW, NEWER = Position(1, 7), Position(1, 8), Position(2, 7)


def answered(*runs: tuple[Position | str, int], accounts: bool = True) -> Generated:
    named = [(run if isinstance(run, str) else label_of(run), length) for run, length in runs]
    count = sum(length for _, length in named)
    return Generated(
        token_ids=(1,) * count,
        logprobs=(-1.0,) * count,
        finish="length",
        weight_version=named[-1][0],
        weight_runs=tuple(WeightRun(weight_version=name, length=length) for name, length in named)
        if accounts
        else None,
    )


@pytest.mark.parametrize(
    ("answer", "possible", "versions"),
    [
        (answered((OLD, 3)), [OLD], [7, 7, 7]),
        (answered((OLD, 1), (NEW, 2)), [OLD, NEW], [7, 8, 8]),
        (answered((NEW, 2)), [OLD, NEW], [8, 8]),
        (answered((OLD, 2)), [OLD, NEW], [7, 7]),
        (answered((OLD, 1), (NEWER, 1)), [OLD, NEW, NEWER], [7, 7]),
        (answered((BASE, 2)), [BASE], [0, 0]),
        (answered((OLD, 2), accounts=False), [OLD], [7, 7]),
        (answered((OLD, 0)), [OLD], []),
    ],
)
def test_what_the_engine_can_have_had_is_believed(
    answer: Generated, possible: list[Position], versions: list[int]
) -> None:
    assert token_versions(answer, possible) == versions


@pytest.mark.parametrize(
    ("answer", "possible"),
    [
        (answered((NEW, 2)), [OLD]),
        (answered((BASE, 2)), [OLD]),
        (answered(("default", 2)), [BASE]),
        (answered((NEWER, 2)), [OLD]),  # the same version number, of another epoch
        (answered((NEW, 1), (OLD, 1)), [OLD, NEW]),  # backwards
        (answered((OLD, 1), (BASE, 1)), [OLD, NEW]),
        (answered((NEW, 2), accounts=False), [OLD, NEW]),
        (answered((OLD, 2), accounts=False), [OLD, NEW]),
        (answered((NEW, 2), accounts=False), [OLD]),
    ],
)
def test_anything_else_is_not(answer: Generated, possible: list[Position]) -> None:
    assert token_versions(answer, possible) is None


def test_runs_of_equal_versions_are_one_span() -> None:
    assert spans_of([7, 7, 8, 7]) == (model_span(2, version=7), model_span(1, version=8), model_span(1, version=7))
    assert spans_of([]) == ()


@pytest.mark.parametrize("position", [BASE, OLD, NEWER, Position(1, 0), Position(3, 17), Position(10**9, 10**12)])
def test_a_label_names_one_position(position: Position) -> None:
    assert position_of(label_of(position)) == position


def test_labels_are_epoch_and_version() -> None:
    assert label_of(Position(3, 17)) == "3.17"
    assert label_of(BASE) == "0"


@pytest.mark.parametrize(
    "label", ["default", "", "3", "1.", ".1", "01.2", "1.02", "0.0", "0.3", "1.2.3", "1.-2", "1.2 "]
)
def test_a_name_that_is_not_ours_is_no_position(label: str) -> None:
    assert position_of(label) is None
