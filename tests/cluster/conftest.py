"""A real control plane for the tests that need no more than one, and a namespace of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.control_planes import Kubectl, NewControllerManager, NewControlPlane
from tests.support.operator.forked_operator import prepare
from tests.support.template_process import TemplateProcess, template_process
from trimtab.api.crd import custom_resource_definitions
from trimtab.embedded.kube.assets import ControllerAssets, ControlPlaneAssets
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.kube.controller_manager import EmbeddedControllerManager
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.embedded.seaweedfs import JOB_ROLE_ARN, EmbeddedSeaweed
from trimtab.fabric.settings import environment_for


@pytest.fixture(scope="session")
def new_control_plane(assets: ControlPlaneAssets, tmp_path_factory: pytest.TempPathFactory) -> NewControlPlane:
    """Control planes with the CRDs installed. Even an idle one costs 3 % of a core: none outlives those who need it."""

    @contextmanager
    def running() -> Iterator[ControlPlane]:
        with ControlPlane(tmp_path_factory.mktemp("control-plane"), assets=assets) as plane:
            plane.install(custom_resource_definitions())
            yield plane

    return running


@pytest.fixture(scope="package")
def control_plane(new_control_plane: NewControlPlane) -> Iterator[ControlPlane]:
    with new_control_plane() as plane:
        yield plane


@pytest.fixture(scope="session")
def new_controller_manager(
    controllers: ControllerAssets, tmp_path_factory: pytest.TempPathFactory
) -> NewControllerManager:
    """Kubernetes' own controllers, those that are named and no others, for a control plane without a node."""

    def named(plane: ControlPlane, *names: str) -> EmbeddedControllerManager:
        folder = tmp_path_factory.mktemp("controller-manager")
        program = controllers.controller_manager
        return EmbeddedControllerManager(folder, control_plane=plane, program=program, controllers=names)

    return named


@pytest.fixture
def kubectl(control_plane: ControlPlane) -> Kubectl:
    return control_plane.kubectl


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    name = f"test-{uuid.uuid4().hex[:12]}"
    control_plane.kubectl("create", "namespace", name)
    return name


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The operator's environment: where NATS and object storage are, and in whose name it makes users of NATS."""
    with (
        EmbeddedNatsWithAccounts(tmp_path_factory.mktemp("nats")) as nats,
        EmbeddedSeaweed(tmp_path_factory.mktemp("seaweedfs")) as store,
    ):
        sections = {"NATS": nats.address, "OBJECT_STORE": store.settings}
        own = {
            "TRIMTAB_NATS_ACCOUNTS__SEED_FILE": str(nats.operator_seed_file),
            "TRIMTAB_STORAGE_ROLES__STS__ROLE_ARN": JOB_ROLE_ARN,
        }
        yield own | {
            name.replace("TRIMTAB_", f"TRIMTAB_{section}__", 1): value
            for section, settings in sections.items()
            for name, value in environment_for(settings).items()
        }


@pytest.fixture(scope="session")
def operator_template() -> Iterator[TemplateProcess]:
    """Operators are forked from it: their imports alone take seconds."""
    with template_process(prepare) as template:
        yield template
