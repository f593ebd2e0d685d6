"""JSON lines: shuffled random access, against reading and parsing the file in order."""

import dataclasses
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks.measure import Row, faster_than, seconds_per_element, side_by_side
from headrace.sources import JsonLinesDataSource
from headrace.sources.json_lines import JSON, json_value

NUM_LINES = 10**6
NUM_TIMED = 100_000
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def write_lines(path: Path) -> None:
    """Lines of about 140 bytes: a number, a text of twelve words, a label and a float."""
    rng = random.Random(0)
    with path.open("w") as file:
        for i in range(NUM_LINES):
            text = " ".join(rng.choices(WORDS, k=12))
            file.write(json.dumps({"id": i, "text": text, "label": rng.randrange(10), "score": rng.random()}) + "\n")


class StandardLibraryLines(JsonLinesDataSource):
    """Both sides parse with the standard library, also where the source would use a faster parser."""

    _format = dataclasses.replace(JSON, parser=lambda: json_value)


def in_order(path: Path) -> Iterator[Any]:
    """A bare loop over the file."""
    with path.open() as file:
        yield from map(json.loads, file)


def json_lines_shuffled() -> Row:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.jsonl"
        write_lines(path)
        source = StandardLibraryLines(path)
        mine, bare = side_by_side(
            lambda: seconds_per_element(
                lambda: hr.MapDataset.source(source).shuffle(seed=1).to_iter_dataset(), NUM_TIMED, warm_up=1000
            ),
            lambda: seconds_per_element(lambda: in_order(path), NUM_TIMED, warm_up=1000),
            rounds=9,
        )
    return faster_than("JSON lines, 10^6 lines, shuffled random access", "in order, a bare loop", 0.5, mine, bare)


ROWS: list[Callable[[], Row | list[Row]]] = [json_lines_shuffled]
