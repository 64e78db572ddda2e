"""`trimtab dev up` and `trimtab dev preempt` as a person starts them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from tests.support.api.manifests import changed, job
from tests.support.devcluster.bench import Bench, container, pod
from trimtab.api.review import review
from trimtab.cli.main import main
from trimtab.embedded.kube.assets import ControlPlaneAssets

pytestmark = pytest.mark.slow


def test_a_preempted_pod_says_so_and_goes(bench: Bench) -> None:
    slow = container("trap 'sleep 4; exit 0' TERM; while true; do sleep 0.05; done")
    bench.apply(pod("spot", slow))
    bench.ready("spot")
    arguments = ["dev", "preempt", "spot", "-n", bench.namespace, "--kubeconfig", str(bench.plane.kubeconfig())]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    leaving = bench.get("spot")
    conditions = {condition["type"]: condition["status"] for condition in leaving["status"]["conditions"]}
    assert conditions["DisruptionTarget"] == "True"
    assert "deletionTimestamp" in leaving["metadata"]
    bench.gone("spot")
    again = CliRunner().invoke(main, arguments)
    assert (again.exit_code, 'pods "spot" not found' in again.output) == (1, True)


def test_a_cluster_comes_up_runs_a_pod_and_goes(assets: ControlPlaneAssets, tmp_path: Path) -> None:
    arguments = ("dev", "up", "--data-folder", str(tmp_path), "--capacity", "cpu=3")
    command = [sys.executable, "-m", "trimtab.cli.main", *arguments]
    with (tmp_path / "err").open("w") as errors:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert running.stdout is not None
        # It ends with this line, or with its output where it fails.
        said = next((line for line in running.stdout if "Ctrl-C stops everything" in line), "")
        assert str(tmp_path / "node" / "node.log") in said, (tmp_path / "err").read_text()

        def tried(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
            config = ["--kubeconfig", str(tmp_path / "admin.kubeconfig")]
            return subprocess.run(
                [str(assets.kubectl), *config, *arguments], input=stdin, capture_output=True, text=True, timeout=600
            )

        def kubectl(*arguments: str, stdin: str | None = None) -> str:
            done = tried(*arguments, stdin=stdin)
            assert done.returncode == 0, done.stderr
            return done.stdout

        kubectl("apply", "-f", "-", stdin=json.dumps(pod("hello", container("echo hello"), restartPolicy="Never")))
        kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/hello", "--timeout=300s")
        assert kubectl("logs", "hello") == "hello\n"
        assert kubectl("get", "node", "development", "-o", "jsonpath={.status.capacity.cpu}") == "3"

        bad = json.dumps(changed(job("bad"), {"spec.policies.0.sampling": {"temperature": 0}}))
        (problem,) = review(json.loads(bad)).problems
        said_of_it = f"{problem.field}: {problem.message}"
        while (refused := tried("apply", "--dry-run=server", "-f", "-", stdin=bad)).returncode == 0:
            assert running.poll() is None  # the API server takes a moment to learn of a webhook
        assert said_of_it in refused.stderr
        (operator,) = (
            child for child in psutil.Process(running.pid).children() if "trimtab.operator" in child.cmdline()
        )
        operator.suspend()
        kubectl("apply", "-f", "-", stdin=bad)
        operator.kill()
        kubectl("wait", "--for=condition=Accepted=false", "rlj/bad", "--timeout=600s")
        kubectl("delete", "rlj/bad", "--timeout=600s")
    finally:
        running.send_signal(signal.SIGINT)
        assert running.wait(600) == 0
        assert running.stdout is not None
        running.stdout.close()


def test_capacity_that_is_none_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["dev", "up", "--data-folder", str(tmp_path), "--capacity", "cpu=many"])
    assert refused.exit_code == 2
    assert "'many' is no quantity" in refused.output
