"""The Dockerfile keeps what it promises: pinned, several stages, nobody's user, an image for each kind of pod."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import yaml

from images.environment import IMAGES, ROOT

_TEXT = (ROOT / "images/Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
_LINES = [line for line in _TEXT.splitlines() if line and not line.startswith("#")]


@dataclass(frozen=True)
class _Stage:
    name: str
    base: str
    instructions: list[str]


def _stages() -> dict[str, _Stage]:
    found: dict[str, _Stage] = {}
    for line in _LINES:
        if opening := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            found[opening[2]] = _Stage(opening[2], opening[1], [])
        elif found:
            list(found.values())[-1].instructions.append(line)
    return found


def _inherited(stage: _Stage) -> list[str]:
    """Its instructions after those of the stages that it builds on."""
    below = _stages().get(stage.base)
    return [*([] if below is None else _inherited(below)), *stage.instructions]


def test_the_base_is_an_exact_release_and_the_only_one() -> None:
    (base,) = [line for line in _LINES if line.startswith("ARG PYTHON=")]
    assert re.fullmatch(r"ARG PYTHON=python:3\.\d+\.\d+-slim-\w+", base)
    outside = {stage.base for stage in _stages().values()} - set(_stages())
    assert outside == {"${PYTHON}"}


@pytest.mark.parametrize("role", IMAGES)
def test_an_image_has_its_environment_and_nothing_of_how_it_was_made(role: str) -> None:
    image, environment = _stages()[role], _stages()[f"{role}-environment"]
    assert environment.instructions == [f"RUN images/install.sh {role} /opt/trimtab"]
    copies = [line for line in _inherited(image) if line.startswith(("COPY", "ADD"))]
    assert copies == [f"COPY --from={role}-environment /opt/trimtab /opt/trimtab"]
    assert [line for line in _inherited(image) if line.startswith("USER")] == ["USER 65532:65532"]
    entry_point = IMAGES[role].entry_point
    assert image.instructions[-1].startswith(f'ENTRYPOINT ["python", "-m", "{entry_point}')


def test_the_image_with_sglang_is_the_rollout_image_and_an_environment_of_its_own() -> None:
    image = _stages()["rollout-sglang"]
    assert image.base == "rollout"
    assert image.instructions[0] == "COPY --from=sglang-environment /opt/sglang /opt/sglang"
    assert image.instructions[-1] == _stages()["rollout"].instructions[-1]
    (made,) = _stages()["sglang-environment"].instructions
    assert "--require-hashes --requirement images/locks/sglang.txt" in made


@pytest.mark.parametrize("role", IMAGES)
def test_images_that_see_a_gpu_have_the_compiler_that_triton_needs_and_no_others_do(role: str) -> None:
    installed = " ".join(line for line in _inherited(_stages()[role]) if "apt-get install" in line)
    assert (" gcc " in installed) is (role in {"rollout", "trainer"})


def test_the_build_has_all_files_that_it_copies() -> None:
    copied = [line.split()[1:-1] for line in _LINES if line.startswith("COPY") and "--from" not in line]
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for source in (name for names in copied for name in names):
        assert (ROOT / source).exists(), source
        assert f"!{source}" in allowed


def test_the_chart_asks_for_these_images() -> None:
    values = yaml.safe_load((ROOT / "charts/trimtab/values.yaml").read_text(encoding="utf-8"))
    asked = [values["operator"]["image"], *values["jobs"]["images"].values()]
    assert {image["repository"] for image in asked} == {f"ghcr.io/trimtab/{role}" for role in IMAGES}
