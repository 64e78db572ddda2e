"""Groups are routed by what their prompt is labelled with, not by the policy that answered it alone."""

from __future__ import annotations

import pytest

from tests.support.dataflow.books import GROUP, Feed, header, ledger
from tests.support.dataflow.jobs import spec
from tests.support.dataflow.ledger_pictures import Witnessed, picture
from tests.support.dataflow.offers import POLICIES
from trimtab.api.validation import InvalidManifestError
from trimtab.dataflow.ledger.records import StreamsRouted
from trimtab.dataflow.ledger.snapshot import Restoration, take_snapshot
from trimtab.dataflow.prompts.prompt import Prompt, label_of
from trimtab.dataflow.selection.fresh import Fresh
from trimtab.dataflow.service import Labels, begun, taken_labels
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.wire.envelope import decode, encode

OWN = {"solver": {"solver": 1.0}, "judge": {"judge": 1.0}}
LABELS: Labels = {"solver": {"solver": ("math",)}, "judge": {"solver": ("code", "proofs"), "judge": ("code",)}}


def labelled(feed: Feed, task: int, label: str, *, policy: str = "solver") -> None:
    for index in range(GROUP):
        feed.arrive(header(task, index, policy=policy, label=label))


def waiting(feed: Feed) -> dict[str, set[str]]:
    return {
        name: {group.group_id for buffer in books.buffers.values() for group in buffer}
        for name, books in feed.ledger.trainers.items()
    }


def test_groups_are_routed_by_the_label_of_their_prompt() -> None:
    told = Witnessed()
    selection = Fresh({"solver": {"solver": 1.0}, "judge": {"solver": 1.0, "judge": 1.0}}, seed=0)
    feed = Feed(ledger(policies=POLICIES, selection=selection, witness=told))
    routed = begun(selection, LABELS, feed.ledger)
    feed.ledger.apply(decode(encode(routed), StreamsRouted))
    feed.issue(5)
    for task, label in enumerate(("math", "code", "proofs", "", "poems")):
        labelled(feed, task, label)
        labelled(feed, task, label, policy="judge")
    assert waiting(feed) == {"solver": {"t0.solver"}, "judge": {"t1.solver", "t2.solver", "t1.judge"}}
    assert len(told.told) == 6, "of groups that nobody takes a curator hears when they are complete"
    again = ledger(policies=POLICIES, selection=selection, witness=Witnessed())
    restoration = Restoration(again, take_snapshot(feed.ledger, learnt={}))
    number = 0
    for task, label in enumerate(("math", "code", "proofs", "", "poems")):
        for policy in POLICIES:
            for index in range(GROUP):
                number += 1
                one = header(task, index, policy=policy, label=label)
                restoration.arrived(number, f"{one.group_id}.{index}.0", one)
    restoration.finish()
    assert picture(again) == picture(feed.ledger)
    again.apply(begun(selection, LABELS, again))
    assert picture(again) == picture(feed.ledger), "each process begins so, and changes nothing by it"


def test_what_waits_and_is_no_longer_taken_is_given_up() -> None:
    selection = Fresh(OWN, seed=0)
    feed = Feed(ledger(policies=POLICIES, selection=selection))
    feed.issue(2)
    labelled(feed, 0, "math")
    labelled(feed, 1, "code")
    routed = begun(selection, {"solver": {"solver": ("code",)}}, feed.ledger)
    feed.ledger.apply(routed)
    assert waiting(feed)["solver"] == {"t1.solver"}


def test_a_trainer_that_takes_a_part_of_its_stream_is_rolled_out_for_until_it_has_enough() -> None:
    """Every second prompt is of the wrong kind, and more are asked for in their place."""
    selection = Fresh({"solver": {"solver": 1.0}}, seed=0)
    feed = Feed(ledger(selection=selection))
    routed = begun(selection, {"solver": {"solver": ("math",)}}, feed.ledger)
    feed.ledger.apply(routed)
    issued = 0
    while not feed.ledger.can_grant("solver"):
        assert issued < 20
        feed.issue(feed.ledger.capacity_tasks())
        for task in range(issued, feed.ledger.issued):
            labelled(feed, task, "math" if task % 8 == 0 else "code")
        issued = feed.ledger.issued
    assert issued > 8


@pytest.mark.parametrize(("value", "label"), [("math", "math"), (7, "7"), (True, "true"), (None, "")])
def test_a_label_is_what_the_column_of_the_prompt_says(value: object, label: str) -> None:
    assert label_of(Prompt("p", {"subject": value}), column="subject") == label
    assert label_of(Prompt("p", {"subject": value}), column=None) == ""
    assert label_of(Prompt("p", {}), column="subject") == ""


@pytest.mark.parametrize("value", ["", "x" * 65, 1.5, ["math"]])
def test_what_is_no_label_is_refused_with_the_name_of_the_prompt(value: object) -> None:
    with pytest.raises(JobMisconfigured, match="data.routeColumn: prompt 'p' has .* in column 'subject'"):
        label_of(Prompt("p", {"subject": value}), column="subject")


MIX = [{"policy": "solver", "streams": [{"policy": "solver", "labels": ["math", "proofs"]}, {"policy": "judge"}]}]


def test_the_manifest_says_which_labels_a_trainer_takes() -> None:
    data = spec(policies=2, data={"routeColumn": "subject", "mix": MIX}).data
    assert taken_labels(data) == {"solver": {"solver": ("math", "proofs")}}


def test_labels_without_a_column_are_refused() -> None:
    with pytest.raises(InvalidManifestError, match="labels of a stream are values of routeColumn"):
        spec(policies=2, data={"mix": MIX})
