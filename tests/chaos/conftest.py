"""What the tests of rollout pods under fire share: a model, an engine for all pods, and a process to fork pods from."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from examples.quickstart.make import make_model, make_tokenizer
from tests.support.rollout.forked_pods import prepare
from tests.support.template_process import TemplateProcess, template_process


@pytest.fixture(scope="session")
def rollout_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rollout-model")
    make_model(folder, seed=0)
    make_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def rollout_template(rollout_model: Path) -> Iterator[TemplateProcess]:
    with template_process(partial(prepare, rollout_model)) as template:
        yield template
