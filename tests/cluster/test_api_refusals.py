"""The API server and the offline checker are given the same manifests and must come to the same verdict."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from tests.support.api.complete import complete_job, complete_pool, complete_trainer, variants
from tests.support.api.manifests import BAD_MANIFESTS, Manifest, changed, job, pool, trainer
from tests.support.api.mutations import mutated
from tests.support.control_planes import Kubectl
from trimtab.api.validation import problems

MUTATIONS = 400


def _refusals(kubectl: Kubectl, namespace: str, folder: Path, manifests: dict[str, Manifest]) -> dict[str, str]:
    """What the server says about each manifest it refuses, by key; one kubectl process for all of them."""
    for key, manifest in manifests.items():
        (folder / f"{key}.json").write_text(json.dumps(manifest))
    done = kubectl("create", "--dry-run=server", "-n", namespace, "-f", str(folder), check=False)
    refusals = {}
    for message in re.split(r"(?m)^(?=Error from server|The |error: )", done.stderr):
        named = re.search(rf"{re.escape(str(folder))}/([\w-]+)\.json", message)
        if named:
            refusals[named[1]] = message
        else:
            assert not message.strip(), message
    assert len(refusals) + len(done.stdout.splitlines()) == len(manifests)
    return refusals


def test_every_bad_manifest_is_refused_by_field_here_and_offline(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    assert len(BAD_MANIFESTS) >= 45
    refusals = _refusals(kubectl, namespace, tmp_path, {bad.id: bad.manifest for bad in BAD_MANIFESTS})
    for bad in BAD_MANIFESTS:
        assert bad.field in refusals.get(bad.id, "accepted"), (bad.id, refusals.get(bad.id))
        assert any(bad.field in problem.field for problem in problems(bad.manifest)), bad.id


@pytest.mark.slow
def test_damaged_manifests_get_the_same_verdict_here_and_offline(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    rng = random.Random(20260801)
    valid = [job(), pool(), trainer(), complete_job(), complete_pool(), complete_trainer(), *variants()]
    manifests = {f"valid-{number}": manifest for number, manifest in enumerate(valid)}
    for number in range(MUTATIONS):
        manifests[f"damaged-{number}"] = mutated(rng.choice(valid), rng)
    refusals = _refusals(kubectl, namespace, tmp_path, manifests)
    offline = {key: problems(manifest) for key, manifest in manifests.items()}
    disagreements = {
        key: (refusals.get(key, "accepted"), found)
        for key, found in offline.items()
        if bool(found) != (key in refusals)
    }
    assert disagreements == {}
    assert len(valid) < len(manifests) - len(refusals) < MUTATIONS / 2


def test_a_thousand_pools_are_refused_by_name(kubectl: Kubectl, namespace: str) -> None:
    crowd = changed(job(), {"spec.pools": [{"name": f"pool-{number}"} for number in range(1000)]})
    refused = kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=json.dumps(crowd), check=False)
    assert refused.returncode != 0
    assert "spec.pools: Too many: 1000: must have at most 128 items" in refused.stderr


def test_a_pool_that_lacks_a_policy_is_refused_in_the_words_of_the_offline_check(
    kubectl: Kubectl, namespace: str
) -> None:
    uncovered = changed(job("uncovered"), {"spec.pools.1.engines": [{"policy": "solver", "replicas": 3}]})
    (problem,) = problems(uncovered)
    assert "pool spot has no engine for policy verifier" in problem.message
    refused = kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=json.dumps(uncovered), check=False)
    assert refused.returncode != 0
    assert f"{problem.field}: Invalid value" in refused.stderr
    assert problem.message in refused.stderr


@pytest.mark.slow
def test_the_largest_job_is_accepted(kubectl: Kubectl, namespace: str) -> None:
    """The limits are chosen so that a job at all of them still passes within the price the server allows for rules."""
    names = [f"policy-{number}" for number in range(32)]
    engines = [{"policy": name, "replicas": 16} for name in names]
    largest = changed(
        job("largest"),
        {
            "spec.policies": [
                {
                    "name": name,
                    "model": {"uri": "/models/base"},
                    "algorithm": {"kl": {"coefficient": 0.1, "stage": f"stage-{number}"}},
                }
                for number, name in enumerate(names)
            ],
            "spec.pools": [{"name": f"pool-{number}", "engines": engines} for number in range(128)],
            "spec.workflow.roles": [{"name": name, "policy": name} for name in names],
            "spec.data.mix": [{"policy": name, "streams": [{"policy": other} for other in names]} for name in names],
            "spec.stages": [
                {
                    "name": f"stage-{number}",
                    "computes": "Logprobs",
                    "policy": names[number],
                    "needs": [f"stage-{other}" for other in range(number)],
                    "rows": names,
                    **({"pool": f"pool-{number}"} if number % 2 else {}),
                }
                for number in range(32)
            ],
        },
    )
    assert problems(largest) == []
    kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=json.dumps(largest))


def test_a_manifest_of_a_mebibyte_is_stored_whole(kubectl: Kubectl, namespace: str) -> None:
    table = [f"{number:08d}" * 8 for number in range(15_500)]
    large = changed(job("large"), {"spec.workflow.args": {"table": table}})
    assert len(json.dumps(large)) > 1024 * 1024
    kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=json.dumps(large))
    stored = json.loads(kubectl("get", "rlj", "large", "-n", namespace, "-o", "json").stdout)
    assert stored["spec"]["workflow"]["args"]["table"] == table


def test_what_is_too_large_to_store_is_refused_here_and_offline(kubectl: Kubectl, namespace: str) -> None:
    large = changed(job("huge"), {"spec.workflow.args": {"text": "x" * (1600 * 1024)}})
    refused = kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=json.dumps(large), check=False)
    assert refused.returncode != 0
    assert "request is too large" in refused.stderr
    assert [problem.field for problem in problems(large)] == ["spec.workflow.args.text"]
