from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api.manifests import changed, job, pool
from trimtab.api import names
from trimtab.api.scalars import LABEL_PATTERN, MAX_REPLICAS
from trimtab.api.validation import problems

LABELS = st.from_regex(LABEL_PATTERN, fullmatch=True).filter(lambda name: len(name) <= 40)


@given(job_name=LABELS, member=LABELS)
def test_every_job_the_rules_accept_has_children_whose_names_fit(job_name: str, member: str) -> None:
    manifest = changed(job(), {"metadata.name": job_name, "spec.pools.0.name": member})
    short = len(job_name) + len(member) <= names.MAX_JOB_AND_MEMBER
    reserved = member in (*names.RESERVED_MEMBERS, "spot")
    fits = short and len(job_name) + len("verifier") <= names.MAX_JOB_AND_MEMBER
    assert (problems(manifest) == []) == (fits and not reserved)
    if fits:
        child = names.pool_name(job_name, member)
        pods = [names.rollout_pod_name(child, MAX_REPLICAS), names.trainer_pod_name(child, MAX_REPLICAS)]
        pods.append(names.dataflow_pod_name(job_name, 63))
        assert all(len(name) <= 63 and re.fullmatch(LABEL_PATTERN, name) for name in pods)
        assert len(set(pods)) == 3


def test_a_pool_and_a_trainer_of_one_name_do_not_share_pods() -> None:
    assert names.rollout_pod_name("run-a", 0) != names.trainer_pod_name("run-a", 0)
    assert names.pool_name("run", "a") == "run-a"
    assert names.trainer_name("run", "a") == "run-a"
    assert names.dataflow_pod_name("run", 1) == "run-dataflow-1"


def test_the_longest_name_the_api_takes_is_the_longest_that_fits() -> None:
    longest = "p" * names.MAX_CHILD_NAME
    assert problems(pool(longest)) == []
    assert len(names.rollout_pod_name(longest, 10**names.ORDINAL_DIGITS - 1)) == 63
    with pytest.raises(names.NameTooLongError, match="shorten"):
        names.pool_name("j" * 40, "p" * 9)


@pytest.mark.parametrize("ordinal", [-1, 10**names.ORDINAL_DIGITS])
def test_an_ordinal_out_of_range_is_refused(ordinal: int) -> None:
    with pytest.raises(names.NameTooLongError, match="ordinal"):
        names.trainer_pod_name("run-a", ordinal)
