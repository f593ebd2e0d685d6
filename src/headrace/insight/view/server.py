"""The page's server: on this machine only, and only for those who know the address.

The address has a token that nobody can guess, and requests without it are refused; so are those whose `Host` is not
this server, as when another page's name was made to lead here. The policy allows no script but the page's own.
"""

import hmac
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import HeadraceError, format_error
from headrace.errors.one_line import one_line
from headrace.insight.report import asset
from headrace.insight.view.shown import PipelinePage

HOST = "127.0.0.1"
STOP_S = 5.0
# Attributes `style` may be there, since elements are shown in tables with some; scripts and other files may not.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src data:; "
    "media-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class AuthMiddleware:
    """Lets requests through that have the token and name this server; adds the headers that protect the page."""

    def __init__(self, app: ASGIApp, token: str, hosts: tuple[str, ...]):
        self._app = app
        self._token = token
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # there are no web sockets here

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        app = self._app if self._is_authorized(scope) else PlainTextResponse("Forbidden", 403)
        await app(scope, receive, with_headers)

    def _is_authorized(self, scope: Scope) -> bool:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        given = scope["path"].split("/", 2)[1].encode(errors="replace")
        return len(hosts) == 1 and hosts[0] in self._hosts and hmac.compare_digest(given, self._token.encode())


class Server:
    """Serves what is shown of a pipeline, in a thread."""

    def __init__(self, shown: PipelinePage, token: str, port: int = 0):
        self._socket = socket.create_server((HOST, port))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}/{token}/"
        app = _app(shown, token, tuple(f"{name}:{self.port}" for name in (HOST, "localhost")))
        config = uvicorn.Config(
            app,
            log_config=None,  # its own would close all handlers of this process
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="headrace-view-server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops serving."""
        self._server.should_exit = True
        self._thread.join(STOP_S)
        self._socket.close()


def _app(shown: PipelinePage, token: str, hosts: tuple[str, ...]) -> Starlette:
    def html(make: Callable[[Request], str]) -> Callable[[Request], Response]:
        return lambda request: HTMLResponse(make(request))

    def elements(request: Request) -> Response:
        text = request.query_params.get("number", "0")
        if not text.isdecimal():
            return PlainTextResponse(f"The number of an element is 0 or more; got {one_line(text)!r}.", 400)
        try:
            return HTMLResponse(shown.elements(int(text)))
        except HeadraceError as e:
            return PlainTextResponse(str(e), 404)
        except Exception as e:  # of the user's functions
            return PlainTextResponse(format_error(e), 500)

    def acting(act: Callable[[], Any]) -> Callable[[Request], Response]:
        def do(_: Request) -> Response:
            act()
            return Response(status_code=204)

        return do

    def file(name: str, kind: str) -> Callable[[Request], Response]:
        return lambda _: Response(asset(name), media_type=kind)

    def report(_: Request) -> Response:
        return HTMLResponse(shown.report(), headers={"content-disposition": 'attachment; filename="report.html"'})

    def live(_: Request) -> Response:
        return JSONResponse(shown.live())

    routes = [
        Route("/", html(lambda _: shown.page())),
        Route("/style.css", file("style.css", "text/css")),
        Route("/view.js", file("view.js", "text/javascript")),
        Route("/live", live),
        Route("/figures", html(lambda _: shown.figures())),
        Route("/stages", html(lambda _: shown.stages())),
        Route("/elements", elements),
        Route("/report.html", report),
        Route("/run", acting(shown.runner.run), methods=["POST"]),
        Route("/pause", acting(shown.runner.pause), methods=["POST"]),
    ]
    gate = Middleware(AuthMiddleware, token=token, hosts=hosts)
    return Starlette(routes=[Mount(f"/{token}", routes=routes)], middleware=[gate])
