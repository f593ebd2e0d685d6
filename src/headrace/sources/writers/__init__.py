"""Writes records to files, in shards: ArrayRecord, TFRecord, JSON lines, Parquet, Arrow, CSV and tar.

A file appears under its name only when it is complete: it is written under another name and then renamed. Shards hold
consecutive records, so reading them one after the other restores the order. A stopped call that is made again with the
same `job` continues after the finished shards.
"""

import os
from collections.abc import Callable

from headrace.errors import PipelineError
from headrace.sources.writers.csv_writer import write_csv as write_csv
from headrace.sources.writers.record_writers import write_array_record as write_array_record
from headrace.sources.writers.record_writers import write_json_lines as write_json_lines
from headrace.sources.writers.record_writers import write_tfrecord as write_tfrecord
from headrace.sources.writers.shards import Progress as Progress
from headrace.sources.writers.shards import shard_names as shard_names
from headrace.sources.writers.table_writers import write_arrow as write_arrow
from headrace.sources.writers.table_writers import write_parquet as write_parquet
from headrace.sources.writers.tar_writer import write_tar as write_tar

WRITERS: dict[str, Callable[..., list[str]]] = {
    ".array_record": write_array_record,
    ".arrayrecord": write_array_record,
    ".tfrecord": write_tfrecord,
    ".tfrecords": write_tfrecord,
    ".parquet": write_parquet,
    ".arrow": write_arrow,
    ".feather": write_arrow,
    ".csv": write_csv,
    ".jsonl": write_json_lines,
    ".tar": write_tar,
}


HOLD_RECORDS = (write_array_record, write_tfrecord)  # their files give back records as bytes


def writer_of(path: str) -> Callable[..., list[str]]:
    """The function that writes files with the suffix of this path."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in WRITERS:
        raise PipelineError(f"{path} ends in {suffix!r}; the supported suffixes are {', '.join(WRITERS)}.")
    return WRITERS[suffix]
