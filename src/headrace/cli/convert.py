"""`headrace convert SOURCE TARGET`: writes data in another format."""

import argparse
import json
from typing import Any

from headrace.cli import output
from headrace.cli.arguments import positive
from headrace.dataset import IterDataset, MapDataset
from headrace.errors.addresses import identity
from headrace.sources import opening
from headrace.sources.tf_example import is_example
from headrace.sources.writers import HOLD_RECORDS, WRITERS, writer_of
from headrace.storage import files


def add_arguments(convert: argparse.ArgumentParser) -> None:
    convert.description = (
        "Reads data and writes it in another format. A file appears under its name when it is complete; after an "
        "interruption, the same command keeps the finished shards and continues with the next. Exit status: 0 if "
        "everything was written, 1 if not."
    )
    convert.add_argument("source", metavar="SOURCE", help="a path, a pattern in quotes, an address or a folder")
    convert.add_argument(
        "target", metavar="TARGET", help=f"the file to write; its suffix chooses the format: {', '.join(WRITERS)}"
    )
    convert.add_argument("--shards", type=positive, default=1, metavar="N", help="how many files to write (1)")
    convert.add_argument(
        "--from", dest="format", metavar="FORMAT", help="the source's format, if headrace does not recognize it"
    )
    convert.add_argument("--split", help="which split or part of one, as in 'train[:80%%]' (TFDS, Hugging Face: train)")
    convert.add_argument("--columns", nargs="+", metavar="NAME", help="which columns of a table (all)")
    records = convert.add_mutually_exclusive_group()
    records.add_argument(
        "--parse-examples",
        action="store_true",
        help=(
            "parse records as tf.train.Example and write their features (the default if the first record "
            "is one, unless the target format stores records as bytes)"
        ),
    )
    records.add_argument(
        "--raw-records", action="store_true", help="write records as bytes, even if they are tf.train.Example"
    )
    convert.add_argument(
        "--decode", action="store_true", help="write images as arrays; by default, image files are written as they are"
    )
    convert.add_argument(
        "--plain",
        action="store_true",
        help=(
            "write values without notes on their types, and lose what the target format cannot hold, "
            "such as dtypes and shapes; by default, elements read back equal, and a value that would not "
            "is an error"
        ),
    )
    convert.add_argument("--overwrite", action="store_true", help="replace existing files")
    convert.add_argument("--quiet", action="store_true", help="no progress bar")
    convert.set_defaults(
        run=_convert, failure=1, after_stop=" Run the same command again to continue with the next shard."
    )


def _convert(given: argparse.Namespace) -> int:
    write = writer_of(given.target)
    options = {name: value for name in ("split", "columns") if (value := getattr(given, name)) is not None}
    form, _, _ = opening.identify_parts(given.source, format=given.format)
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
    if (form.decodes or form.has_paths) and write is WRITERS[".tar"]:
        records = MapDataset.source(records).map(_with_cls)
    paths = write(
        records,
        given.target,
        plain=given.plain,
        num_shards=given.shards,
        overwrite=given.overwrite,
        job=_identity(given, options | {"parse_examples": parses}),
        progress=output.no_progress if given.quiet else None,
    )
    print(*paths, sep="\n")
    return 0


def _with_cls(element: Any) -> Any:
    """An element of a folder of classes as tar files have it: there, an int has the extension `cls`."""
    return {"cls" if name == "label" else name: value for name, value in element.items()}


def _first(records: Any) -> bytes:
    """The first record; no bytes if there is none."""
    if isinstance(records, IterDataset):
        with iter(records) as iterator:
            return next(iterator, b"")
    return records[0] if len(records) else b""


def _identity(given: argparse.Namespace, options: dict[str, Any]) -> str:
    """What identifies this conversion: the versions of the files that it reads, and how it reads them."""
    versions = [(identity(path), *files.fingerprint(path)) for path in opening.paths_of(given.source)]
    return json.dumps([identity(given.source), versions, given.format, options])
