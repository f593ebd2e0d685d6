"""Kinds of arguments, and those that several commands take."""

import argparse


def seconds(text: str) -> float:
    """A time."""
    try:
        given = float(text)
    except ValueError:
        given = 0.0
    if not 0 < given < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0; got {text!r}")
    return given


def positive(text: str) -> int:
    """A number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1; got {text!r}")
    return int(text)


def add_data(parser: argparse.ArgumentParser, *, splits: str, required: bool = True) -> None:
    """The arguments that say which data to read."""
    what = "a path, a pattern in quotes, an address or a folder"
    parser.add_argument("path", metavar="PATH", nargs=None if required else "?", help=what)
    parser.add_argument("--from", dest="format", metavar="FORMAT", help="the format, if headrace does not recognize it")
    parser.add_argument("--split", help=f"which split of a TFDS or Hugging Face folder ({splits})")


def add_pipeline(parser: argparse.ArgumentParser) -> None:
    """The argument that names a pipeline."""
    parser.add_argument(
        "pipeline",
        metavar="FILE:NAME",
        help="a dataset, a loader, or a function without arguments that returns one, in a Python file or a module",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
