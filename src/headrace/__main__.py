"""The command line: `python -m headrace convert SOURCE TARGET`."""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.dataset import IterDataset, MapDataset
from headrace.errors import HeadraceError
from headrace.sources import files, opening
from headrace.sources.writers import WRITERS, Progress, writer_of

REPORTED_EVERY_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        return given.run(given)
    except (HeadraceError, OSError) as e:
        print("headrace:", e, *getattr(e, "__notes__", ()), sep=" ", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("headrace: stopped. The same command goes on with the next shard.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m headrace", description="Feeds accelerators.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    convert = commands.add_parser(
        "convert",
        help="write data in another format",
        description="Reads data and writes it in another format. A file appears under its name when it is complete; "
        "after a stop, the same command keeps the shards that are finished and goes on with the next.",
    )
    convert.add_argument("source", metavar="SOURCE", help="a path, a pattern in quotes, an address or a folder")
    convert.add_argument("target", metavar="TARGET", help=f"the file to write: one that ends in {', '.join(WRITERS)}")
    convert.add_argument("--shards", type=_positive, default=1, metavar="N", help="how many files to write (1)")
    convert.add_argument("--from", dest="format", metavar="FORMAT", help="the source's format, if it cannot be told")
    convert.add_argument("--split", help="which split of a TFDS folder (train)")
    convert.add_argument("--columns", nargs="+", metavar="NAME", help="which columns of a table (all)")
    convert.add_argument(
        "--parse-examples", action="store_true", help="records are tf.train.Example: write their features"
    )
    convert.add_argument("--overwrite", action="store_true", help="replace files that are there")
    convert.add_argument("--quiet", action="store_true", help="no progress bar")
    convert.set_defaults(run=_convert)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on; got {text!r}")
    return int(text)


def _convert(given: argparse.Namespace) -> int:
    write = writer_of(given.target)
    options = {name: value for name in ("split", "columns") if (value := getattr(given, name)) is not None}
    records: Any = opening.open(given.source, format=given.format, **options)
    if given.parse_examples:
        from headrace.sources.tf_example import parse_example

        dataset = records if isinstance(records, IterDataset) else MapDataset.source(records)
        records = dataset.map(parse_example)
    with contextlib.nullcontext() if given.quiet else _bar(os.path.basename(given.target)) as progress:
        paths = write(
            records,
            given.target,
            num_shards=given.shards,
            overwrite=given.overwrite,
            job=_identity(given, options),
            progress=progress,
        )
    print(*paths, sep="\n")
    return 0


def _identity(given: argparse.Namespace, options: dict[str, Any]) -> str:
    """What tells this conversion from others: the versions of the files that it reads, and how."""
    versions = [(path, *files.fingerprint(path)) for path in opening.paths_of(given.source)]
    return json.dumps([versions, given.format, options, given.parse_examples])


# ---------------------------------------------------------------------------------------------- progress


@contextlib.contextmanager
def _bar(title: str) -> Iterator[Progress]:
    """A function that shows how far the work is: a bar on a terminal, and otherwise a line now and then."""
    try:
        from rich import progress as rich
        from rich.console import Console
    except ImportError:
        yield _lines(title)
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(title)
        return
    columns = rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn()
    with rich.Progress(*columns, rich.TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(title: str) -> Progress:
    began = told = time.monotonic()

    def tell(done: int, total: int | None) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= REPORTED_EVERY_S or done == total:
            told = now
            rate = done / max(now - began, 1e-9)
            of = "" if total is None else f" of {total:,}"
            print(f"{title}: {done:,}{of} records, {rate:,.0f} per second", file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    sys.exit(main())
