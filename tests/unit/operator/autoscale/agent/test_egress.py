"""Which addresses the operator dials for the author of a manifest: public ones, and those that the chart allows."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from trimtab.operator.autoscale.agent.egress import Egress, EgressRefused


def _egress(*answers: list[str], allowed: tuple[str, ...] = ()) -> Egress:
    """With a resolver that gives these answers, one after the other."""
    given = list(answers)

    async def resolve(host: str, port: int) -> list[str]:
        if not given:
            raise OSError("no such host")
        return given.pop(0)

    return Egress(allowed=tuple(ip_network(cidr) for cidr in allowed), resolve=resolve)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.96.0.1",
        "172.16.3.4",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd12:3456::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::",
        "no address",
        "",
    ],
)
async def test_inner_addresses_are_not_dialled(address: str) -> None:
    with pytest.raises(EgressRefused, match=r"agent\.baseUrl.*allowedCidrs") as refused:
        await _egress([address]).addresses("model.example.org", 443)
    assert address == "" or address not in str(refused.value)


@pytest.mark.parametrize("address", ["160.79.104.10", "2607:6bc0::10", "64:ff9b::a04f:680a"])
async def test_public_ones_are(address: str) -> None:
    assert await _egress([address]).addresses("api.anthropic.com", 443) == [address]


async def test_one_inner_address_among_public_ones_is_enough_to_refuse() -> None:
    with pytest.raises(EgressRefused):
        await _egress(["160.79.104.10", "10.0.0.1"]).addresses("both.example.org", 443)


async def test_a_host_that_does_not_exist_is_told_like_one_that_is_refused() -> None:
    """Else a manifest would be a way to ask for names of the inner network."""
    with pytest.raises(EgressRefused) as missing:
        await _egress().addresses("nothing.svc", 443)
    with pytest.raises(EgressRefused) as inner:
        await _egress(["10.0.0.1"]).addresses("something.svc", 443)
    assert str(missing.value) == str(inner.value)


async def test_what_the_chart_allows_is_dialled() -> None:
    egress = _egress(["10.1.2.3"], ["10.2.2.3"], allowed=("10.1.0.0/16", "fd00::/8"))
    assert await egress.addresses("model.svc", 80) == ["10.1.2.3"]
    with pytest.raises(EgressRefused):
        await egress.addresses("model.svc", 80)


async def test_each_dial_is_judged_anew() -> None:
    """A name that means a public address at first and an inner one then."""
    egress = _egress(["160.79.104.10"], ["127.0.0.1"])
    assert await egress.addresses("rebinding.example.org", 443) == ["160.79.104.10"]
    with pytest.raises(EgressRefused):
        await egress.addresses("rebinding.example.org", 443)
