"""`headrace doctor [PATH]`: finds damaged records; without a path, checks this machine."""

import argparse
import json

from headrace.cli import arguments, machine, output
from headrace.insight.verify import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "With a PATH: reads all data once, in a separate process, and reports which files and "
        "records cannot be read, including those that crash the process or hang. Exit status: 0 if "
        "all data is good, 1 if something is damaged, 2 if the data could not be checked. Without a PATH: "
        "reports what this machine has for loading data, and what is missing."
    )
    arguments.add_data(parser, splits="all", required=False)
    parser.add_argument(
        "--timeout-s", type=arguments.seconds, default=60.0, metavar="S", help="time limit for one record"
    )
    parser.add_argument(
        "--max-memory-bytes", type=arguments.positive, metavar="N", help="memory limit for reading (4 GiB)"
    )
    parser.add_argument(
        "--max-damaged", type=arguments.positive, default=100, metavar="N", help="how many damaged places to report"
    )
    arguments.add_json(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_doctor)


def _doctor(given: argparse.Namespace) -> int:
    if given.path is None:
        found = machine.inspect_machine()
        print(json.dumps(found, indent=2)) if given.json else output.show(*machine.as_parts(found))
        return 0
    names = ("format", "split", "timeout_s", "max_memory_bytes", "max_damaged")
    options = {name: value for name in names if (value := getattr(given, name)) is not None}
    report = verify(given.path, progress=output.no_progress if given.quiet else None, **options)
    print(json.dumps(report.as_dict(), indent=2) if given.json else report)
    return 0 if report.is_good else 1
