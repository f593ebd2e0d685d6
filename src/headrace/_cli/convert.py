"""`headrace convert SOURCE TARGET`: writes data in another format."""

import argparse
import contextlib
import json
import os
import sys
from typing import Any

from headrace._cli.arguments import positive
from headrace._cli.progress import progress as _progress
from headrace._utils.addresses import identity
from headrace.dataset import IterDataset, MapDataset
from headrace.sources import files, opening
from headrace.sources.tf_example import parse_example
from headrace.sources.writers import WRITERS, writer_of


def add_arguments(convert: argparse.ArgumentParser) -> None:
    convert.description = (
        "Reads data and writes it in another format. A file appears under its name when it is complete; "
        "after a stop, the same command keeps the shards that are finished and goes on with the next. "
        "Exit status: 0 if all is written, 1 if not."
    )
    convert.add_argument("source", metavar="SOURCE", help="a path, a pattern in quotes, an address or a folder")
    convert.add_argument("target", metavar="TARGET", help=f"the file to write: one that ends in {', '.join(WRITERS)}")
    convert.add_argument("--shards", type=positive, default=1, metavar="N", help="how many files to write (1)")
    convert.add_argument("--from", dest="format", metavar="FORMAT", help="the source's format, if it is not recognized")
    convert.add_argument("--split", help="which split of a TFDS or Hugging Face folder (train)")
    convert.add_argument("--columns", nargs="+", metavar="NAME", help="which columns of a table (all)")
    convert.add_argument(
        "--parse-examples", action="store_true", help="records are tf.train.Example: write their features"
    )
    convert.add_argument("--overwrite", action="store_true", help="replace existing files")
    convert.add_argument("--quiet", action="store_true", help="no progress bar")
    convert.set_defaults(run=_convert, failure=1, after_stop=" The same command goes on with the next shard.")


def _convert(given: argparse.Namespace) -> int:
    write = writer_of(given.target)
    options = {name: value for name in ("split", "columns") if (value := getattr(given, name)) is not None}
    records: Any = opening.open(given.source, format=given.format, **options)
    if given.parse_examples:
        dataset = records if isinstance(records, IterDataset) else MapDataset.source(records)
        records = dataset.map(parse_example)
    with contextlib.nullcontext() if given.quiet else _progress(os.path.basename(given.target), sys.stderr) as progress:
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
    """What identifies this conversion: the versions of the files that it reads, and how it reads them."""
    versions = [(identity(path), *files.fingerprint(path)) for path in opening.paths_of(given.source)]
    return json.dumps([identity(given.source), versions, given.format, options, given.parse_examples])
