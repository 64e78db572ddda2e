"""The client against a real API server: conflicts, preconditions, apply, subresources, expiry, and a server's crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
import yaml

from tests.support.polling import eventually, within
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.fabric.backoff import FullJitter
from trimtab.kube.access import load_access
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import AlreadyExists, Conflict, Forbidden, Gone, Invalid, NotFound
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import CONFIG_MAPS, NAMESPACES, PODS, SECRETS, Key
from trimtab.kube.watch import watch


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncGenerator[KubeClient, None]:
    async with KubeClient(load_access(control_plane.kubeconfig())) as client:
        yield client


async def test_writes_hold_under_their_conditions_only(client: KubeClient, namespace: str) -> None:
    body = {"metadata": {"name": "m"}, "data": {"a": "1"}}
    made = await client.create(CONFIG_MAPS, body, namespace=namespace)
    with pytest.raises(AlreadyExists):
        await client.create(CONFIG_MAPS, body, namespace=namespace)
    patched = await client.patch(CONFIG_MAPS, "m", {"data": {"b": "2"}}, namespace=namespace)
    assert patched["data"] == {"a": "1", "b": "2"}
    with pytest.raises(Conflict, match="object has been modified"):
        await client.replace(CONFIG_MAPS, "m", made, namespace=namespace)
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, "m", namespace=namespace, uid="another")
    await client.delete(CONFIG_MAPS, "m", namespace=namespace, uid=made["metadata"]["uid"])
    assert await client.get_or_none(CONFIG_MAPS, "m", namespace=namespace) is None
    with pytest.raises(NotFound):
        await client.delete(CONFIG_MAPS, "m", namespace=namespace)
    with pytest.raises(Invalid, match="metadata.name"):
        await client.create(CONFIG_MAPS, {"metadata": {"name": "No Name"}}, namespace=namespace)


async def test_applied_fields_have_an_owner(client: KubeClient, namespace: str) -> None:
    body = {"metadata": {"name": "m"}, "data": {"a": "1"}}
    await client.apply(CONFIG_MAPS, body, namespace=namespace, field_manager="first")
    other = {"metadata": {"name": "m"}, "data": {"a": "2"}}
    with pytest.raises(Conflict, match='conflict with "first"'):
        await client.apply(CONFIG_MAPS, other, namespace=namespace, field_manager="second", force=False)
    taken = await client.apply(CONFIG_MAPS, other, namespace=namespace, field_manager="second")
    assert taken["data"] == {"a": "2"}


async def test_strangers_are_refused(control_plane: ControlPlane, namespace: str) -> None:
    access = load_access(control_plane.kubeconfig(user="stranger", groups=()))
    async with KubeClient(access) as client:
        with pytest.raises(Forbidden, match="stranger"):
            await client.list(PODS, namespace=namespace)


@pytest.mark.slow
async def test_the_store_outlives_a_crash_of_the_server(control_plane: ControlPlane, namespace: str) -> None:
    access = load_access(control_plane.kubeconfig())
    async with KubeClient(access, backoff=FullJitter(base_s=0.1, cap_s=1.0)) as client:

        async def create(name: str, **labels: str) -> None:
            await client.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": labels}}, namespace=namespace)

        old = (await client.list(NAMESPACES)).resource_version
        for number in range(5):
            await create(f"mine-{number}", owner="me")
        await create("theirs", owner="you")
        reflector = Reflector(
            client,
            CONFIG_MAPS,
            namespace=namespace,
            label_selector="owner=me",
            page=2,
            backoff=FullJitter(base_s=0.1, cap_s=0.5),
        )
        following = asyncio.create_task(reflector.run())
        try:
            await reflector.synced(timeout_s=120)
            assert {key.name for key in reflector} == {f"mine-{number}" for number in range(5)}
            await client.patch(CONFIG_MAPS, "mine-0", {"metadata": {"labels": {"owner": "you"}}}, namespace=namespace)
            await eventually(lambda: Key(namespace, "mine-0") not in reflector, timeout_s=10)
            control_plane.apiserver.kill()
            await eventually(lambda: reflector.failure is not None, timeout_s=10)
            await client.get(NAMESPACES, namespace)
            await create("after", owner="me")
            await eventually(lambda: Key(namespace, "after") in reflector and reflector.failure is None, timeout_s=20)
            # A server that was started again remembers no changes of its earlier life.
            async with aclosing(watch(client, NAMESPACES, resource_version=old)) as stream:
                with pytest.raises(Gone):
                    await within(anext(stream), 20)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def test_a_program_s_token_is_accepted(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    """As clouds log people in: a kubeconfig that names a program instead of credentials."""
    create = ("create", "--namespace", namespace)
    control_plane.kubectl(*create, "serviceaccount", "person")
    control_plane.kubectl(*create, "role", "reads", "--verb=get", "--resource=configmaps")
    control_plane.kubectl(*create, "rolebinding", "reads", "--role=reads", f"--serviceaccount={namespace}:person")
    control_plane.kubectl(*create, "configmap", "visible")
    issuer = control_plane.kubeconfig()
    program = tmp_path / "login.sh"
    program.write_text(
        f"#!/bin/sh\ntoken=$({control_plane.assets.kubectl} --kubeconfig {issuer} -n {namespace} create token person)\n"
        'printf \'{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", '
        '"status": {"token": "%s"}}\' "$token"\n'
    )
    program.chmod(0o755)
    config = yaml.safe_load(issuer.read_text())
    config["users"][0]["user"] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}
    }
    own = tmp_path / "config"
    own.write_text(yaml.safe_dump(config))
    async with KubeClient(load_access(own)) as client:
        await client.get(CONFIG_MAPS, "visible", namespace=namespace)
        with pytest.raises(Forbidden, match=f"system:serviceaccount:{namespace}:person"):
            await client.list(SECRETS, namespace=namespace)
