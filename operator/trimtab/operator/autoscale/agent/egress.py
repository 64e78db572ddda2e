"""Where the operator dials for an agent maintainer. The author of a manifest names the host, and the operator's network
reaches what the author's does not: this machine, the node, metadata services, the cluster's own servers.

A name is resolved here, each of its addresses is judged, and one that was judged is dialled: a name that means
something else a moment later gains nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host. Raises OSError."""
_RESOLVING_S = 10.0
_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
_BITS_32 = (1 << 32) - 1


class EgressRefused(OSError):
    """No address of the host may be dialled. The text does not say what they are: the author of the name would learn
    what is in a network that is not theirs."""


async def resolved(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True, kw_only=True)
class Egress:
    allowed: tuple[Network, ...] = ()
    """Beside all that is public."""
    anywhere: bool = False
    """On a person's own machine, where the manifest is theirs too."""
    resolve: Resolve = resolved

    async def addresses(self, host: str, port: int) -> list[str]:
        """To be dialled, in this order, and no others. Raises EgressRefused."""
        try:
            async with asyncio.timeout(_RESOLVING_S):
                found = await self.resolve(host, port)
        except (OSError, UnicodeError, TimeoutError):
            found = []
        # All of them: one public address beside an inner one is how a name is made to pass.
        if not found or not all(self.permits(address) for address in found):
            raise EgressRefused(
                "agent.baseUrl: the operator may not dial this host; it must have public addresses only, or such as "
                "operator.agentEgress.allowedCidrs of the chart allows"
            )
        return found

    def permits(self, written: str) -> bool:
        if self.anywhere:
            return True
        try:
            address = ipaddress.ip_address(written.partition("%")[0])
        except ValueError:
            return False
        if any(address in network for network in self.allowed if network.version == address.version):
            return True
        inner = _inner(address)
        return address.is_global and not address.is_multicast and (inner is None or self.permits(str(inner)))


def _inner(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 one stands for: translated and tunnelled packets end there."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if any(address in network for network in _NAT64):
        return ipaddress.IPv4Address(int(address) & _BITS_32)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
