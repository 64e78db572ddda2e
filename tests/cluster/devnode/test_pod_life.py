"""A pod's life by the real kubectl: it runs, says so, is restarted by its policy, and leaves nothing behind."""

from __future__ import annotations

import threading

from tests.cluster.devnode.bench import Bench, container, pod


def test_a_pod_runs_to_its_end(bench: Bench) -> None:
    bench.apply(pod("once", container(shell="echo hello; echo bye >/dev/termination-log"), restartPolicy="Never"))
    done = bench.phase("once", "Succeeded", "Failed")
    status = done["status"]
    assert (status["phase"], status["podIP"]) == ("Succeeded", "127.0.0.1")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (0, "Completed", "bye\n")
    assert bench.logs("once") == "hello\n"
    assert {"Scheduled", "Started"} <= set(bench.reasons("once"))
