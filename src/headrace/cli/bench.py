"""`headrace bench FILE:NAME`: runs a pipeline for a few seconds and reports what limits it: see `headrace.diagnose`."""

import argparse
import json

import headrace
from headrace.cli import arguments, output, pipelines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs a pipeline for a few seconds and reports its speed, where the time goes and what limits it."
    )
    arguments.add_pipeline(parser)
    parser.add_argument("--seconds", type=arguments.seconds, default=5.0, metavar="S", help="seconds to run (5)")
    arguments.add_json(parser)
    parser.set_defaults(run=_bench)


def _bench(given: argparse.Namespace) -> int:
    found = headrace.diagnose(pipelines.load(given.pipeline), seconds=given.seconds)
    if given.json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        output.show(output.Lines(str(found).splitlines()))
    return 0
