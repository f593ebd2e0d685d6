"""`headrace head PATH`: the first records of data, or the first elements of a pipeline."""

import argparse
import contextlib
import json
from itertools import islice
from typing import Any

from headrace.cli import arguments, output, pipelines
from headrace.cli.data_sets import open_data
from headrace.cli.output import as_json
from headrace.insight.show import element_text
from headrace.sources.tf_example import parse_example


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prints the first records of data; of a pipeline (FILE.py:NAME), its first elements."
    arguments.add_data(parser, splits="train, or the first")
    parser.add_argument("-n", dest="count", type=arguments.positive, default=5, metavar="N", help="how many (5)")
    parser.add_argument(
        "--parse-examples", action="store_true", help="parse records as tf.train.Example and show their features"
    )
    arguments.add_json(parser)
    parser.set_defaults(run=_head)


def _head(given: argparse.Namespace) -> int:
    dataset = pipelines.load(given.path) if pipelines.is_pipeline(given.path) else open_data(given).dataset
    with contextlib.closing(iter(dataset)) as iterator:
        elements: list[Any] = list(islice(iterator, given.count))
    if given.parse_examples:
        elements = [parse_example(element) for element in elements]
    if given.json:
        print(json.dumps([as_json(element) for element in elements], indent=2))
    elif elements:
        output.show(
            *(output.Lines(element_text(each, dataset).splitlines(), f"[{i}]") for i, each in enumerate(elements))
        )
    return 0
