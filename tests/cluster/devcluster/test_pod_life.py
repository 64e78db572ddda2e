"""A pod's life by the real kubectl: it runs, says so, is restarted by its policy, and leaves nothing behind."""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.devcluster.bench import Bench, container, pod


def test_a_pod_runs_to_its_end(bench: Bench) -> None:
    bench.apply(pod("once", container("echo hello; echo bye >/dev/termination-log"), restartPolicy="Never"))
    done = bench.phase("once", "Succeeded", "Failed")
    status = done["status"]
    assert (status["phase"], status["podIP"]) == ("Succeeded", "127.0.0.1")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (0, "Completed", "bye\n")
    assert bench.logs("once") == "hello\n"
    bench.has_events("once", "Scheduled", "Started")


def test_python_is_the_interpreter_we_run_in(bench: Bench) -> None:
    command = {
        "name": "main",
        "image": "x",
        "command": ["python", "-c"],
        "args": ["import trimtab.devcluster; print('here')"],
    }
    bench.apply(pod("snake", command, restartPolicy="Never"))
    bench.phase("snake", "Succeeded")
    assert bench.logs("snake") == "here\n"


def test_a_crash_is_told_and_the_container_started_again(bench: Bench) -> None:
    crashing = container("echo life; exit 3", terminationMessagePolicy="FallbackToLogsOnError")
    bench.apply(pod("crash", crashing))
    seen = bench.until(lambda: bench.state("crash"), lambda state: state.get("restartCount", 0) >= 2)
    last = seen["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"], last["message"]) == (3, "Error", "life\n")
    waiting = bench.until(lambda: bench.state("crash")["state"], lambda state: "waiting" in state)["waiting"]
    assert waiting["reason"] == "CrashLoopBackOff"
    assert bench.get("crash")["status"]["phase"] == "Running"
    assert bench.logs("crash", "--previous") == "life\n"


@pytest.mark.parametrize(
    ("policy", "code", "phase"), [("Never", 3, "Failed"), ("Never", 0, "Succeeded"), ("OnFailure", 0, "Succeeded")]
)
def test_what_is_not_to_be_started_again_ends_the_pod(bench: Bench, policy: str, code: int, phase: str) -> None:
    bench.apply(pod("ends", container(f"exit {code}"), restartPolicy=policy))
    done = bench.phase("ends", "Succeeded", "Failed")
    assert done["status"]["phase"] == phase
    assert bench.state("ends")["restartCount"] == 0


def test_deletion_gives_time_and_then_leaves_no_process(bench: Bench) -> None:
    """One container leaves when asked; the other does not listen, nor does what it started in a session of its own."""
    polite = container("trap 'echo leaving; sleep 0.3; exit 0' TERM; while true; do sleep 0.05; done", name="polite")
    stubborn = container(f"trap '' TERM; setsid sleep 1000 {bench.mark} & sleep 1001 # {bench.mark}", name="stubborn")
    stubborn["command"] = ["python", "-c", _STUBBORN, bench.mark]
    bench.apply(pod("two", polite, stubborn, terminationGracePeriodSeconds=6))
    bench.ready("two")
    assert len(bench.until(bench.processes, lambda found: len(found) >= 2)) >= 2
    began = time.monotonic()
    bench.kubectl("delete", "pod", "two", "--wait=false")
    bench.says("two", "leaving", "-c", "polite")
    bench.gone("two")
    assert time.monotonic() - began >= 6.0
    assert bench.until(bench.processes, lambda found: not found) == []


_STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", sys.argv[1]], start_new_session=True)
time.sleep(1000)
"""


def test_a_forced_deletion_ends_the_processes_too(bench: Bench) -> None:
    stubborn = {"name": "main", "image": "x", "command": ["python", "-c", _STUBBORN, bench.mark]}
    bench.apply(pod("forced", stubborn, terminationGracePeriodSeconds=300))
    bench.until(bench.processes, lambda found: len(found) >= 2)
    bench.kubectl("delete", "pod", "forced", "--force", "--grace-period=0")
    bench.until(bench.processes, lambda found: not found)


def test_sidecars_come_first_and_go_last(bench: Bench) -> None:
    side = container(
        "echo up >/shared/order; trap 'cat /shared/order; exit 0' TERM; while true; do sleep 0.05; done",
        name="side",
        restartPolicy="Always",
        startupProbe={"exec": {"command": ["test", "-f", "/shared/order"]}, "periodSeconds": 1},
    )
    first = container("echo init >>/shared/order", name="first")
    after_the_reader = "while [ ! -f /shared/read ]; do sleep 0.05; done; echo main >>/shared/order"
    main = container(after_the_reader, lifecycle={"preStop": {"exec": {"command": ["true"]}}})
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    for one in (side, first, main):
        one["volumeMounts"] = mounts
    reader = container("cat /shared/order; touch /shared/read", name="reader", volumeMounts=mounts)
    volumes = [{"name": "shared", "emptyDir": {"medium": "Memory"}}]
    keeper = pod("order", main, reader, initContainers=[side, first], volumes=volumes, restartPolicy="Never")
    bench.apply(keeper)
    done = bench.phase("order", "Succeeded", "Failed")
    assert done["status"]["phase"] == "Succeeded"
    assert bench.logs("order", "-c", "reader").split() == ["up", "init"]
    assert bench.logs("order", "-c", "side").split() == ["up", "init", "main"]
    assert bench.state("order", "side")["state"]["terminated"]["exitCode"] == 0
    assert bench.state("order", "first")["ready"] is True


def test_an_init_container_that_fails_keeps_the_rest_from_starting(bench: Bench) -> None:
    broken = container("exit 7", name="broken")
    bench.apply(pod("stuck", container("echo never"), initContainers=[broken], restartPolicy="Never"))
    done = bench.phase("stuck", "Failed")
    assert bench.state("stuck", "broken")["state"]["terminated"]["exitCode"] == 7
    assert done["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"
    assert {c["type"]: c["status"] for c in done["status"]["conditions"]}["Initialized"] == "False"


def test_a_pod_over_its_deadline_fails(bench: Bench) -> None:
    bench.apply(pod("late", container("sleep 1000"), activeDeadlineSeconds=1))
    assert bench.phase("late", "Failed")["status"]["reason"] == "DeadlineExceeded"


def test_a_container_without_a_command_is_told_why_it_waits(bench: Bench) -> None:
    bench.apply(pod("image", {"name": "main", "image": "nginx"}))
    state = bench.until(lambda: bench.state("image"), lambda state: "has no command" in str(state))
    assert state["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    assert "nginx" in state["state"]["waiting"]["message"]
    bench.has_events("image", "Failed")
    assert "has no command" in bench.kubectl("logs", "image", check=False)


def test_a_program_that_is_not_there_is_a_failed_start(bench: Bench) -> None:
    absent = {"name": "main", "image": "x", "command": ["no-such-program"]}
    bench.apply(pod("absent", absent, restartPolicy="Never"))
    bench.phase("absent", "Failed")
    assert bench.state("absent")["state"]["terminated"]["exitCode"] != 0
    assert "no-such-program" in bench.logs("absent")


def test_a_process_killed_by_a_signal_has_its_number(bench: Bench) -> None:
    bench.apply(pod("killed", container("kill -9 $$$$"), restartPolicy="Never"))
    bench.phase("killed", "Failed")
    assert bench.state("killed")["state"]["terminated"]["exitCode"] == 128 + signal.SIGKILL
