"""`headrace view FILE:NAME`: a pipeline in the browser."""

import argparse
import contextlib

from headrace.cli import arguments, pipelines
from headrace.insight.view import view


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serves a page on this machine that shows a running pipeline: its graph with statistics, the "
        "elements after every operation and the records that they come from, mixtures, lengths and "
        "padding. Press Ctrl-C to stop."
    )
    arguments.add_pipeline(parser)
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port to serve at (any that is free)")
    parser.add_argument("--no-browser", action="store_true", help="print the address, but do not open a browser")
    parser.set_defaults(run=_view)


def _view(given: argparse.Namespace) -> int:
    pipeline = pipelines.load(given.pipeline)
    with view(pipeline, title=given.pipeline, port=given.port, open_browser=not given.no_browser) as shown:
        print(shown.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            shown.wait()
    return 0
