"""A page that shows a pipeline while it runs: its graph, its numbers, and what its operations do to elements."""

import os
import secrets
import sys
import threading
import webbrowser
from html import escape
from typing import Any, Self

from headrace.errors import optional


class View:
    """A page that shows a pipeline, at `url`, until `close()`.

    The pipeline runs while somebody looks at the page, and pauses otherwise.
    """

    def __init__(self, pipeline: Any, title: str, port: int):
        optional("jinja2", extra="view")
        optional("starlette", extra="view")
        optional("uvicorn", extra="view")
        from headrace.insight.view.server import Server
        from headrace.insight.view.shown import PipelinePage

        self._shown = PipelinePage(pipeline, title)
        self._server = Server(self._shown, secrets.token_urlsafe(24), port)
        self._closed = threading.Event()
        self.url: str = self._server.url

    def wait(self) -> None:
        """Waits until it is closed, as a script must that has nothing else to do."""
        self._closed.wait()

    def close(self) -> None:
        """Ends the page and the run."""
        self._closed.set()
        self._server.close()
        self._shown.runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<view at {self.url}>"

    def _repr_html_(self) -> str:
        return f'<a href="{escape(self.url)}" target="_blank" rel="noopener">{escape(self.url)}</a>'


def view(pipeline: Any, *, title: str = "Pipeline", port: int = 0, open_browser: bool = True) -> View:
    """Serves a page that shows a dataset or a loader; opens it in a browser if there is a screen."""
    made = View(pipeline, title, port)
    if open_browser and _has_screen():
        webbrowser.open(made.url)
    return made


def _has_screen() -> bool:
    """Whether a browser has a window to open; one in the terminal would be in the way."""
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
