"""`headrace bench FILE:NAME`: runs a pipeline for some seconds and says what limits it."""

import argparse
import json
import time
from typing import Any

import headrace
from headrace._cli import arguments, output, pipelines
from headrace._report.numbers import plain_numbers
from headrace._view.shown import iterator_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Runs a pipeline for some seconds and says how fast it is, where time goes and what limits it."
    arguments.add_pipeline(parser)
    parser.add_argument("--seconds", type=arguments.seconds, default=5.0, metavar="S", help="how long to run (5)")
    arguments.add_json(parser)
    parser.set_defaults(run=_bench)


def _bench(given: argparse.Namespace) -> int:
    pipeline = pipelines.load(given.pipeline)
    diagnose = getattr(headrace, "diagnose", None)
    found = _measured(pipeline, given.seconds) if diagnose is None else diagnose(pipeline, seconds=given.seconds)
    if given.json:
        print(json.dumps(found if isinstance(found, dict) else found.as_dict(), indent=2))
    elif isinstance(found, dict):
        output.show(*_parts(found))
    else:
        output.show(output.Lines(str(found).splitlines()))
    return 0


def _measured(pipeline: Any, seconds: float) -> dict[str, Any]:
    """The statistics of some seconds."""
    with iterator_of(pipeline) as iterator:
        end = time.monotonic() + seconds
        for _ in iterator:
            if time.monotonic() > end:
                break
        return plain_numbers(iterator.stats())


def _parts(found: dict[str, Any]) -> list[output.Part]:
    rows = [
        (stage["stage"], stage["where"], f"{stage['elements']:,}", f"{stage['busy_s']:.2f}", f"{stage['waited_s']:.2f}")
        for stage in found["stages"]
    ]
    numbers = ("elements", "busy s", "waited s")
    return [
        output.Fields([("elements", f"{found['elements']:,}"), ("per second", f"{found['rate']:,.1f}")]),
        output.Table(("stage", "where", *numbers), rows, right=numbers),
    ]
