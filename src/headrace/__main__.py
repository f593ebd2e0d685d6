"""The command line: `python -m headrace convert SOURCE TARGET` and `python -m headrace doctor PATH`."""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from headrace._utils.addresses import identity, redacted
from headrace.dataset import IterDataset
from headrace.errors import HeadraceError
from headrace.sources import files, opening
from headrace.sources.tf_example import is_example
from headrace.sources.verification import verify
from headrace.sources.writers import HOLD_RECORDS, WRITERS, Progress, writer_of

BAR_EVERY_S, LINE_EVERY_S = 0.1, 5.0
BAR_WIDTH = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        return given.run(given)
    except (HeadraceError, OSError) as e:
        print(redacted(" ".join(map(str, ("headrace:", e, *getattr(e, "__notes__", ()))))), file=sys.stderr)
        return given.failure
    except KeyboardInterrupt:
        print(f"headrace: stopped.{given.after_stop}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m headrace", description="Loads data for training.")
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
    convert.add_argument("--from", dest="format", metavar="FORMAT", help="the source's format, if it is not recognized")
    convert.add_argument("--split", help="which split of a TFDS or Hugging Face folder (train)")
    convert.add_argument("--columns", nargs="+", metavar="NAME", help="which columns of a table (all)")
    records = convert.add_mutually_exclusive_group()
    records.add_argument(
        "--parse-examples",
        action="store_true",
        help="records are tf.train.Example: write their features (the default, if the first record is one, unless the "
        "target holds such records itself)",
    )
    records.add_argument("--raw-records", action="store_true", help="write records as bytes, even tf.train.Example")
    convert.add_argument("--decode", action="store_true", help="write images as arrays; by default, as their files are")
    convert.add_argument(
        "--plain",
        action="store_true",
        help="write plain values without notes, and lose what the target's format does not have, such as dtypes and "
        "shapes; by default, elements come back equal, and what cannot is an error",
    )
    convert.add_argument("--overwrite", action="store_true", help="replace existing files")
    convert.add_argument("--quiet", action="store_true", help="no progress bar")
    convert.set_defaults(run=_convert, failure=1, after_stop=" The same command goes on with the next shard.")
    doctor = commands.add_parser(
        "doctor",
        help="find damaged files and records",
        description="Reads all data once, in a process of its own, and says which files and records cannot be read, "
        "also those that end the process or never end. Exit status: 0 if all is good, 1 if something is damaged, 2 if "
        "it cannot tell.",
    )
    doctor.add_argument("path", metavar="PATH", help="a path, a pattern in quotes, an address or a folder")
    doctor.add_argument("--from", dest="format", metavar="FORMAT", help="the format, if it is not recognized")
    doctor.add_argument("--split", help="which split of a TFDS or Hugging Face folder (all)")
    doctor.add_argument("--timeout-s", type=_seconds, default=60.0, metavar="S", help="time for one record (60)")
    doctor.add_argument("--max-memory-bytes", type=_positive, metavar="N", help="memory for reading (4 GiB)")
    doctor.add_argument("--max-damaged", type=_positive, default=100, metavar="N", help="damages to report (100)")
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")
    doctor.add_argument("--quiet", action="store_true", help="no progress bar")
    doctor.set_defaults(run=_doctor, failure=2, after_stop="")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0; got {text!r}")
    return seconds


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on; got {text!r}")
    return int(text)


def _convert(given: argparse.Namespace) -> int:
    write = writer_of(given.target)
    options = {name: value for name in ("split", "columns") if (value := getattr(given, name)) is not None}
    form, _, _ = opening.parts_of(given.source, format=given.format)
    if form.decodes:
        options["decode"] = given.decode
    if form.has_paths:
        options["contents"] = True
    records: Any = opening.open(given.source, format=given.format, **options)
    parses = given.parse_examples
    if form.has_records and write not in HOLD_RECORDS and not given.raw_records:
        parses = parses or is_example(_first(records))
    if parses:
        records = opening.examples_in(records)
    with contextlib.nullcontext() if given.quiet else _progress(os.path.basename(given.target), sys.stderr) as progress:
        paths = write(
            records,
            given.target,
            plain=given.plain,
            num_shards=given.shards,
            overwrite=given.overwrite,
            job=_identity(given, options | {"parse_examples": parses}),
            progress=progress,
        )
    print(*paths, sep="\n")
    return 0


def _first(records: Any) -> bytes:
    """The first record; no bytes if there is none."""
    if isinstance(records, IterDataset):
        with iter(records) as iterator:
            return next(iterator, b"")
    return records[0] if len(records) else b""


def _doctor(given: argparse.Namespace) -> int:
    names = ("format", "split", "timeout_s", "max_memory_bytes", "max_damaged")
    options = {name: value for name in names if (value := getattr(given, name)) is not None}
    with contextlib.nullcontext() if given.quiet else _progress(given.path, sys.stderr) as progress:
        found = verify(given.path, progress=progress, **options)
    print(json.dumps(found.as_dict(), indent=2) if given.json else found)
    return 0 if found.is_good else 1


def _identity(given: argparse.Namespace, options: dict[str, Any]) -> str:
    """What identifies this conversion: the versions of the files that it reads, and how it reads them."""
    versions = [(identity(path), *files.fingerprint(path)) for path in opening.paths_of(given.source)]
    return json.dumps([identity(given.source), versions, given.format, options])


@contextlib.contextmanager
def _progress(title: str, out: TextIO) -> Iterator[Progress]:
    """A function that shows progress: a bar on a terminal, otherwise a line now and then."""
    on_terminal = out.isatty()
    began, told = time.monotonic(), -1.0 if on_terminal else time.monotonic()

    def tell(done: int, total: int | None) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told < (BAR_EVERY_S if on_terminal else LINE_EVERY_S) and done != total:
            return
        told = now
        rate = done / max(now - began, 1e-9)
        line = f"{title}: {done:,}{'' if total is None else f' of {total:,}'} records, {rate:,.0f} per second"
        print(f"\r{_bar(done, total)}{line}\033[K" if on_terminal else line, end="" if on_terminal else "\n", file=out)
        out.flush()

    try:
        yield tell
    finally:
        if on_terminal:
            print(file=out)


def _bar(done: int, total: int | None) -> str:
    """A progress bar.

    >>> _bar(2, 3)
    '[####################..........] '
    """
    if not total:
        return ""
    filled = BAR_WIDTH * done // total
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] "


if __name__ == "__main__":
    sys.exit(main())
