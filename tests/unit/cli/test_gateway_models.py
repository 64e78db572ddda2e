"""Whose weights `trimtab gateway --job` takes, by the place in the store that it is told."""

from __future__ import annotations

import pytest

from trimtab.cli.gateway.models import is_place_of


@pytest.mark.parametrize("prefix", ["solver", "jobs/team/solver", "jobs/team/solver-0a1b2c3d"])
def test_a_place_is_the_jobs_by_its_name_and_in_a_cluster_its_uid(prefix: str) -> None:
    assert is_place_of("solver", prefix=prefix)


@pytest.mark.parametrize("prefix", ["", "solver/other", "jobs/solver-2", "jobs/solver-verifier", "jobs/a-solver"])
def test_that_of_another_job_is_not(prefix: str) -> None:
    assert not is_place_of("solver", prefix=prefix)
