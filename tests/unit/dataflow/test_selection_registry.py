"""A selection of the user's: what works is taken as it is, what does not is refused by name before it is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.dataflow.books import Feed
from tests.support.dataflow.jobs import spec
from tests.support.dataflow.offers import POLICIES, Shown, books, grant, supply, used
from trimtab.api.scalars import Plugin
from trimtab.dataflow.selection.contract import Choice, Offer, Selection
from trimtab.dataflow.selection.registry import SelectionMisbehaved, make_selection
from trimtab.fabric.pod import JobMisconfigured

OFFER = Shown(
    batch=4,
    filled=2,
    places=2,
    step=5,
    groups={"solver": ["t5.solver", "t6.solver", "t7.solver"], "judge": ["t5.judge"]},
    pool=[used("t0.solver"), used("t1.solver"), used("t2.solver", last_step=5)],
)


class Answering:
    """Gives the answers it was made with, or raises them."""

    def __init__(self, *, streams: Any = ("solver",), needs: Any = None, choice: Any = None) -> None:
        self._streams, self._needs, self._choice = streams, needs, choice

    def streams(self, policy: str) -> Sequence[str]:
        return self._given(self._streams)  # type: ignore[no-any-return]

    def needs(self, offer: Offer, *, steps: int) -> Mapping[str, int]:
        return self._given(self._needs)  # type: ignore[no-any-return]

    def choose(self, offer: Offer) -> Choice | None:
        return self._given(self._choice)  # type: ignore[no-any-return]

    @staticmethod
    def _given(answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer


def checked(custom: object) -> Selection:
    data = spec(data={"selection": {"entrypoint": "mine:Choosy", "args": {"keen": 3}}}).data
    asked: list[Plugin] = []

    def load(plugin: Plugin) -> object:
        asked.append(plugin)
        return custom

    selection = make_selection(data, policies=list(POLICIES), load=load)
    assert [(plugin.entrypoint, plugin.args) for plugin in asked] == [("mine:Choosy", {"keen": 3})]
    return selection


def misbehaviour(method: str, reason: str) -> Any:
    return pytest.raises(SelectionMisbehaved, match=rf"data\.selection: mine:Choosy\.{method} {reason}")


@pytest.mark.parametrize("method", ["streams", "needs", "choose"])
def test_a_selection_that_lacks_a_method_is_refused_by_its_name(method: str) -> None:
    methods = {name: getattr(Answering, name) for name in ("streams", "needs", "choose") if name != method}
    with pytest.raises(JobMisconfigured, match=rf"mine:Choosy has no method '{method}'"):
        checked(type("Incomplete", (), methods)())


@pytest.mark.parametrize("answer", [(), ("nobody",), ("solver", "solver"), "solver", (["solver"],), ("solver", 3)])
def test_streams_must_be_policies_of_the_job_each_once(answer: Any) -> None:
    with misbehaviour("streams", "answered .* for 'judge'; name policies of this job, each once"):
        checked(Answering(streams=answer)).streams("judge")


@pytest.mark.parametrize("answer", [{"nobody": 2}, {"solver": 1.5}, {"solver": "2"}, {"solver": None}])
def test_needs_must_be_whole_numbers_by_policy(answer: Any) -> None:
    with misbehaviour("needs", r"answered \{.*\}; return whole numbers by policy"):
        checked(Answering(needs=answer)).needs(OFFER, steps=1)


FRESH = ("t5.solver", "t6.solver")
WRONG: list[tuple[Any, str]] = [
    ("all of them", "answered 'all of them'; return a Choice or None"),
    (["t5.solver", "t6.solver"], r"answered \[.*; return a Choice or None"),
    (Choice(fresh=()), "chose 0 groups, 0 of them different, for 2 places"),
    (Choice(fresh=FRESH[:1]), "chose 1 groups, 1 of them different, for 2 places"),
    (Choice(fresh=FRESH, replayed=["t0.solver"]), "chose 3 groups, 3 of them different, for 2 places"),
    (Choice(fresh=["t5.solver", "t5.solver"]), "chose 2 groups, 1 of them different, for 2 places"),
    (Choice(fresh=["t5.solver", "t9.solver"]), r"named groups in `fresh` that were not on offer: \['t9.solver'\]"),
    (Choice(fresh=["t5.solver", "t5.judge"]), r"named groups in `fresh` that were not on offer: \['t5.judge'\]"),
    (Choice(fresh=["t5.solver", "t0.solver"]), r"named groups in `fresh` that were not on offer: \['t0.solver'\]"),
    (Choice(fresh=[5, None]), r"named groups in `fresh` that were not on offer: \['5', 'None'\]"),  # type: ignore[list-item]
    (
        Choice(fresh=FRESH[:1], replayed=["t6.solver"]),
        r"named groups in `replayed` that were not on offer: \['t6.solver'\]",
    ),
    (
        Choice(fresh=FRESH[:1], replayed=["t2.solver"]),
        r"named groups in `replayed` that were not on offer: \['t2.solver'\]",
    ),
    (Choice(fresh=FRESH, retired=["t5.solver"]), r"named groups in `retired` that were not on offer: \['t5.solver'\]"),
    (Choice(fresh=FRESH, retired=["t0.solver", "t0.solver"]), "named a group in `retired` twice"),
    (Choice(fresh=None), "raised TypeError"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("answer", "reason"), WRONG, ids=[reason[:60] for _, reason in WRONG])
def test_a_choice_must_be_of_what_is_on_offer_each_once(answer: Any, reason: str) -> None:
    with misbehaviour("choose", reason):
        checked(Answering(choice=answer)).choose(OFFER)


@pytest.mark.parametrize("method", ["streams", "needs", "choose"])
def test_what_a_selection_raises_is_about_the_manifest(method: str) -> None:
    error = KeyError("lost")
    custom = Answering(**{"choice" if method == "choose" else method: error})
    selection = checked(custom)
    with misbehaviour(method, "raised KeyError: 'lost'"):
        _ = {
            "streams": lambda: selection.streams("solver"),
            "needs": lambda: selection.needs(OFFER, steps=1),
            "choose": lambda: selection.choose(OFFER),
        }[method]()


def test_a_good_choice_is_taken_as_it_is() -> None:
    choice = Choice(fresh=("t7.solver",), replayed=("t1.solver",), keep=True, retired=("t1.solver", "t2.solver"))
    assert checked(Answering(choice=choice)).choose(OFFER) == choice
    assert checked(Answering(choice=None)).choose(OFFER) is None
    assert checked(Answering(needs={"solver": 0})).needs(OFFER, steps=2) == {"solver": 0}


def test_ids_may_come_in_any_sequence_and_are_read_once() -> None:
    """Else what is checked would not be what is recorded: a generator is empty the second time."""

    def chosen() -> Iterator[str]:
        yield from FRESH

    selection = checked(Answering(choice=Choice(fresh=chosen(), retired=np.array(["t0.solver"]))))  # type: ignore[arg-type]
    choice = selection.choose(OFFER)
    assert choice == Choice(fresh=FRESH, retired=("t0.solver",))
    assert choice is not None
    assert [type(group_id) for group_id in (*choice.fresh, *choice.retired)] == [str] * 3


def test_streams_are_asked_for_once() -> None:
    """The books have a place for what was answered first, and for nothing else."""
    custom = Answering(streams=("solver",), choice=Choice(fresh=FRESH))
    selection = checked(custom)
    assert selection.streams("solver") == ("solver",)
    custom._streams = ("solver", "judge")
    assert selection.streams("solver") == ("solver",)
    assert selection.choose(OFFER) is not None


class Newest:
    """Trains on the groups that came last, and once more on the first of them."""

    def streams(self, policy: str) -> Sequence[str]:
        return (policy,)

    def needs(self, offer: Offer, *, steps: int) -> Mapping[str, int]:
        return {offer.policy: steps * offer.batch - offer.filled}

    def choose(self, offer: Offer) -> Choice | None:
        again = [one.group_id for one in offer.used() if one.last_step < offer.step][:1]
        fresh = offer.places - len(again)
        if offer.waiting(offer.policy) < fresh:
            return None
        waiting = offer.earliest(offer.policy, offer.waiting(offer.policy))
        return Choice(fresh=waiting[-fresh:], replayed=again, keep=True)


def test_the_books_do_what_a_selection_of_ones_own_says() -> None:
    feed: Feed = books(checked(Newest()), places=2)
    assert feed.ledger.capacity_tasks() == 6
    supply(feed, 5)
    first, second = grant(feed), grant(feed)
    assert (first.groups, first.replayed) == (("t3.solver", "t4.solver"), ())
    assert (second.groups, second.replayed) == (("t2.solver",), ("t3.solver",))
    assert first.pooled
