"""A node that is killed takes every process along; started again it goes on with the pods it finds."""

from __future__ import annotations

import json

import pytest

from tests.support.devcluster.bench import Bench, container, pod


@pytest.mark.slow
def test_pods_outlive_their_node_by_their_policy(bench: Bench) -> None:
    stubborn = f"trap '' TERM; echo life >>/data/lives; cat /data/lives; while true; do sleep 0.1; done # {bench.mark}"
    mounts = [{"name": "data", "mountPath": "/data"}]
    volumes = [{"name": "data", "emptyDir": {}}]
    bench.apply(
        pod("always", container(stubborn, volumeMounts=mounts), volumes=volumes, terminationGracePeriodSeconds=0),
        pod("never", container(stubborn, volumeMounts=mounts), volumes=volumes, restartPolicy="Never"),
        pod("done", container("echo said"), restartPolicy="Never"),
    )
    bench.ready("always")
    bench.ready("never")
    bench.phase("done", "Succeeded")
    before = set(bench.processes())
    assert len(before) >= 2
    bench.node.kill()
    bench.until(lambda: before & set(bench.processes()), lambda left: not left)
    failed = bench.phase("never", "Failed")
    assert failed["status"]["reason"] == "NodeRestarted"
    again = bench.until(lambda: bench.state("always"), lambda state: state["restartCount"] == 1 and state["ready"])
    assert again["lastState"]["terminated"]["reason"] == "NodeRestarted"
    assert bench.says("always", "life\nlife\n") == "life\nlife\n"  # what was in its volume is still there
    assert bench.logs("done") == "said\n"
    assert bench.state("done")["restartCount"] == 0
    bench.kubectl("delete", "pod", "--all")
    assert bench.until(bench.processes, lambda found: not found) == []


@pytest.mark.slow
def test_pods_do_not_notice_a_crash_of_the_api_server(bench: Bench) -> None:
    # One that starts no others, and says when it is there: who is seen between fork and exec has its parent's name.
    stays = "import time; print('up', flush=True); time.sleep(1000)"
    steady = {"name": "main", "image": "x", "command": ["python", "-c", stays, bench.mark]}
    bench.apply(pod("steady", steady, terminationGracePeriodSeconds=0))
    bench.says("steady", "up")
    before = bench.processes()
    bench.plane.apiserver.kill()
    after = pod("after", container("echo served"), restartPolicy="Never")

    def applied() -> str:
        return bench.kubectl("apply", "-f", "-", stdin=json.dumps(after), check=False)

    bench.until(applied, lambda said: "pod/after" in said)
    bench.phase("after", "Succeeded")
    assert bench.logs("after") == "served\n"
    assert bench.processes() == before
    assert bench.state("steady")["restartCount"] == 0
    bench.kubectl("delete", "pod", "steady")
    bench.until(bench.processes, lambda found: not found)
