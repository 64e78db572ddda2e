"""Who may ask, and what a page may do: what is shown here was written by models and by tenants, and other sites in the
same browser can reach this port too.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_OWN_SITES = (None, "same-origin", "none")
"""What browsers say of who makes a request: the page itself, or a person; programs say nothing."""
TOKEN = "token"  # noqa: S105 - the name of the parameter


@dataclass(frozen=True)
class Guard:
    """`token` is None where reaching the port already takes a right, as behind `kubectl port-forward`."""

    port: int
    token: str | None

    @property
    def cookie(self) -> str:
        """Browsers keep cookies of a host without its port: two of these servers must not take each other's."""
        return f"trimtab-ui-{self.port}"

    def refusal(self, request: web.Request) -> tuple[HTTPStatus, str] | None:
        """Why it is not answered."""
        if request.method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, "this page changes nothing: it answers GET alone"
        name, _, _ = request.host.rpartition(":") if not request.host.endswith("]") else (request.host, "", "")
        if (name or request.host) not in _LOOPBACK:
            # The name of another site that leads here is how such a site would read the answer.
            return HTTPStatus.FORBIDDEN, "this page answers to 127.0.0.1 and localhost alone"
        if self.token is not None and not self._has_token(request):
            return HTTPStatus.FORBIDDEN, "open the address that `trimtab ui` printed: it has a token in it"
        if request.path != "/" and request.headers.get("Sec-Fetch-Site") not in _OWN_SITES:
            return HTTPStatus.FORBIDDEN, "another site asks"
        return None

    def brings_token(self, request: web.Request) -> bool:
        return self.token is not None and _same(request.query.get(TOKEN, ""), self.token)

    def _has_token(self, request: web.Request) -> bool:
        assert self.token is not None
        return _same(request.cookies.get(self.cookie, ""), self.token) or (
            request.path == "/" and self.brings_token(request)
        )


def guarding(guard: Guard) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if (refusal := guard.refusal(request)) is not None:
            status, why = refusal
            return web.Response(status=status, text=f"{why}\n", headers=HEADERS)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            return web.Response(status=error.status, text=f"{error.reason}\n", headers=HEADERS)
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
        if guard.token is not None and guard.brings_token(request):
            response.set_cookie(guard.cookie, guard.token, httponly=True, samesite="Strict", path="/")
        return response

    return middleware


def _same(said: str, token: str) -> bool:
    return hmac.compare_digest(said.encode("utf-8", "replace"), token.encode())
