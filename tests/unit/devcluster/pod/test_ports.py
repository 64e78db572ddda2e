from __future__ import annotations

from typing import Any

import pytest

from tests.support.devcluster.pods import a_pod
from trimtab.devcluster.pod.ports import SHARED_PORTS_ANNOTATION, PortBook, probed_port, variable_of


def serving(uid: str, *, shared: str | None = None, **port: Any) -> dict[str, Any]:
    pod = a_pod({"ports": [{"name": "web-api", "containerPort": 8000, **port}, {"containerPort": 9}]})
    pod["metadata"]["uid"] = uid
    if shared:
        pod["metadata"]["annotations"] = {SHARED_PORTS_ANNOTATION: shared}
    return pod


def test_variables_are_named_after_ports() -> None:
    assert variable_of("web-api") == "TRIMTAB_PORT_WEB_API"


def test_each_pod_has_its_own_and_keeps_it() -> None:
    book = PortBook(choose=lambda count: [100 + number for number in range(count)])
    one, two = serving("1"), serving("2")
    assert book.take(one) == {"web-api": 100}
    assert book.take(two) == {"web-api": 101}
    assert book.take(one) == {"web-api": 100}
    book.release(one)
    assert book.take(serving("3")) == {"web-api": 100}


def test_pods_of_one_group_share_theirs_until_the_last_is_gone() -> None:
    book = PortBook(choose=lambda count: [100 + number for number in range(count)])
    listener, dialler = serving("1", shared="attempt-0"), serving("2", shared="attempt-0")
    assert book.take(listener) == book.take(dialler)
    book.release(listener)
    assert book.take(serving("3", shared="attempt-0")) == book.take(dialler)
    assert book.take(serving("4", shared="attempt-1")) != book.take(dialler)


def test_a_host_port_is_taken_at_its_word() -> None:
    assert PortBook().take(serving("1", hostPort=4242)) == {"web-api": 4242}


@pytest.mark.parametrize(("reference", "port"), [("web-api", 40_001), (8000, 40_001), (9, 9), (1234, 1234), ("77", 77)])
def test_probes_go_to_the_port_that_was_chosen(reference: str | int, port: int) -> None:
    assert probed_port(reference, pod=serving("1"), ports={"web-api": 40_001}) == port


def test_a_probe_of_a_port_that_no_container_has_is_refused() -> None:
    with pytest.raises(ValueError, match="'metrics' is no port"):
        probed_port("metrics", pod=serving("1"), ports={"web-api": 1})
