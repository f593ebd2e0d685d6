"""Runs all rows, or those whose names are given: `python -m benchmarks range_map mix`."""

import logging
import os
import sys
from collections.abc import Collection

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
logging.getLogger("absl").setLevel(logging.ERROR)

from benchmarks import (  # noqa: E402
    autotune,
    core,
    diagnosis,
    disk_cache,
    hosts,
    images,
    loader,
    on_ray,
    packing,
    sources_array_record,
    sources_hugging_face,
    sources_json_lines,
    sources_tables,
    sources_tfrecord,
    statistics_cost,
    text,
    workers,
)
from benchmarks.measure import Row, print_table  # noqa: E402

MODULES = (
    core,
    disk_cache,
    hosts,
    workers,
    autotune,
    diagnosis,
    images,
    loader,
    on_ray,
    sources_array_record,
    sources_tables,
    sources_tfrecord,
    sources_hugging_face,
    sources_json_lines,
    packing,
    text,
    statistics_cost,
)


def run_rows(names: Collection[str]) -> list[Row]:
    """The rows of these names, or all."""
    rows = []
    for make in [row for module in MODULES for row in module.ROWS]:
        if not names or make.__name__ in names:
            print(f"{make.__name__} ...", file=sys.stderr, flush=True)
            made = make()
            rows += made if isinstance(made, list) else [made]
    return rows


if __name__ == "__main__":
    print_table(run_rows(sys.argv[1:]))
