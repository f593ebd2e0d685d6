"""`headrace inspect PATH`: what a data set is."""

import argparse
import json
from typing import Any

from headrace.cli import arguments, output
from headrace.cli.data_sets import Data, as_example, open_data, spec_of
from headrace.cli.output import as_json
from headrace.errors.addresses import redacted
from headrace.insight.show import element_text
from headrace.insight.show.element_view import num_bytes

FEW_FILES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows the format of data, how many files, records and bytes it has, the values in a record, and the first "
        "record."
    )
    arguments.add_data(parser, splits="train, or the first")
    arguments.add_json(parser)
    parser.set_defaults(run=_inspect)


def _inspect(given: argparse.Namespace) -> int:
    data = open_data(given)
    first = data.records(1)
    example = as_example(first[0]) if first else None
    known = data.spec()
    spec = known or (spec_of(first[0]) if first else {})
    if given.json:
        found = _as_dict(given.path, data) | {
            "spec": spec,
            "spec_is_of_first_record": known is None,
            "first_record": as_json(first[0]) if first else None,
            "example": None if example is None else as_json(example),
        }
        print(json.dumps(found, indent=2))
        return 0
    parts: list[output.Part] = [output.Fields(_fields(_as_dict(given.path, data)))]
    if spec:
        parts.append(output.Fields(spec.items(), "Spec" if known else "Spec of the first record"))
    if first:
        parts.append(output.Lines(element_text(first[0]).splitlines(), "First record"))
    if example is not None:
        parts.append(output.Fields(spec_of(example).items(), "It is a tf.train.Example with the features"))
        parts.append(output.Lines(element_text(example).splitlines()))
    output.show(*parts)
    return 0


def _as_dict(path: str, data: Data) -> dict[str, Any]:
    sizes = data.sizes()
    return {
        "path": redacted(path),
        "format": data.format,
        "files": [{"path": redacted(file), "bytes": size} for file, size in zip(data.files, sizes, strict=True)],
        "bytes": sum(sizes) if sizes else None,
        "splits": data.splits,
        "split": data.split,
        "records": data.num_records,
        "checksums": data.checksums,
    }


def _fields(found: dict[str, Any]) -> list[tuple[str, str]]:
    files = found["files"]
    records = found["records"]
    pairs = [("path", found["path"]), ("format", found["format"])]
    if files:
        pairs.append(("files", f"{len(files):,}, {num_bytes(found['bytes'])}"))
        pairs += [("", f"{file['path']}, {num_bytes(file['bytes'])}") for file in files[:FEW_FILES] if len(files) > 1]
        pairs += [("", f"… and {len(files) - FEW_FILES:,} more")] if len(files) > FEW_FILES else []
    if found["splits"]:
        pairs.append(("splits", ", ".join(f"{name} {count:,}" for name, count in found["splits"].items())))
        pairs.append(("split", str(found["split"])))
    counted = "unknown without reading everything: the data is a stream" if records is None else f"{records:,}"
    if records and found["bytes"] and not found["splits"]:
        counted += f", {num_bytes(found['bytes'] // records)} each"
    return [*pairs, ("records", counted), ("checksums", found["checksums"])]
