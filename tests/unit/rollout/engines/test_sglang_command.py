"""SGLang's command line and environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.fabric.pod import JobMisconfigured
from trimtab.rollout.engines.sglang.command import (
    AdapterRoom,
    ServerCommand,
    child_environment,
    refuse_owned,
    server_command,
)


def _command(*extra: str, accelerator: bool = True, adapters: AdapterRoom | None = None) -> ServerCommand:
    return server_command(
        interpreter=Path("/opt/sglang/bin/python"),
        model_path=Path("/models/small"),
        port=4321,
        accelerator=accelerator,
        adapters=adapters,
        extra=extra,
        environ={"PATH": "/bin"},
    )


def test_ours_comes_first_and_the_manifests_last() -> None:
    command = _command("--tp-size=4", "--trust-remote-code")
    assert command.arguments[:3] == ("/opt/sglang/bin/python", "-m", "sglang.launch_server")
    assert {"--model-path=/models/small", "--host=127.0.0.1", "--port=4321", "--weight-version=0"} <= set(
        command.arguments
    )
    assert command.arguments[-2:] == ("--tp-size=4", "--trust-remote-code")


def test_our_loaders_are_registered_and_nothing_is_taken_for_one_more() -> None:
    arguments = _command().arguments
    number = arguments.index("--custom-weight-loader")
    assert arguments[number + 1 : number + 3] == ("trimtab_sparse_loader.prepare", "trimtab_sparse_loader.commit")
    assert arguments[number + 3].startswith("--")


def test_a_machine_without_an_accelerator_is_told_to_use_the_cpu_and_the_manifest_has_the_last_word() -> None:
    command = _command("--dtype=bfloat16", accelerator=False)
    assert "--device=cpu" in command.arguments
    assert command.arguments.index("--dtype=float32") < command.arguments.index("--dtype=bfloat16")
    assert command.environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert "--device=cpu" not in _command().arguments
    assert "SGLANG_USE_CPU_ENGINE" not in _command().environment


def test_room_for_adapters_is_made_at_the_start() -> None:
    room = AdapterRoom(rank=8, targets=("q_proj", "o_proj"))
    arguments = _command("--tp-size=2", adapters=room).arguments
    assert {"--enable-lora", "--max-lora-rank=8"} <= set(arguments)
    number = arguments.index("--lora-target-modules")
    assert arguments[number + 1 : number + 3] == ("q_proj", "o_proj")
    assert arguments[number + 3].startswith("--")
    assert "--lora-backend=torch_native" in _command(adapters=room, accelerator=False).arguments
    assert "--lora-backend=torch_native" not in arguments
    assert "--enable-lora" not in _command().arguments


@pytest.mark.parametrize(
    "argument",
    [
        "--port",
        "--port=1",
        "--host=0.0.0.0",
        "--model-path=x",
        "--model",
        "--custom-weight",
        "--api-key=secret",
        "--enable-lora",
        "--max-lora-rank=4",
        "--lora-paths=a=b",
    ],
)
def test_what_is_ours_to_set_is_refused_by_name_also_abbreviated(argument: str) -> None:
    with pytest.raises(JobMisconfigured, match=f"engine.args: {argument.partition('=')[0]} is not yours") as refusal:
        refuse_owned(["--tp-size", "2", argument])
    assert "secret" not in str(refusal.value)


def test_values_and_other_options_are_not_mistaken_for_ours() -> None:
    refuse_owned(["--served-model-name", "--", "port", "-1", "--model-impl=sglang", "--host-memory=3"])


def test_credentials_and_our_packages_stay_with_us() -> None:
    environ = {
        "PATH": "/bin",
        "HF_HOME": "/cache",
        "PYTHONPATH": "/ours",
        "VIRTUAL_ENV": "/venv",
        "TRIMTAB_NATS__PASSWORD": "secret",
    }
    environment = child_environment(environ, accelerator=True)
    assert environment["PATH"] == "/bin"
    assert environment["HF_HOME"] == "/cache"
    assert "secret" not in environment.values()
    assert "VIRTUAL_ENV" not in environment
    folder = Path(environment["PYTHONPATH"])
    assert sorted(path.name for path in folder.glob("*.py")) == ["__init__.py", "trimtab_sparse_loader.py"]


def test_what_the_pod_sets_for_sglang_wins() -> None:
    environment = child_environment({"SGLANG_USE_CPU_ENGINE": "0"}, accelerator=False)
    assert environment["SGLANG_USE_CPU_ENGINE"] == "0"
