"""Everything that is changed in the documents before they run, with its reason, and nothing else.

Each repair names a document, a block, what is found there and what it becomes; an empty `find` inserts lines before
the block. Wherever `HERE` stands in a replacement, it is the folder in which the document runs. Beside the table, one
rule: a line that starts with `!` is given to the shell, or left out where it installs something.
"""

import os
from dataclasses import dataclass

from tests.seeds.documents import Block


class RepairError(Exception):
    """A repair that does not apply: the document has changed, or the table is wrong."""


@dataclass(frozen=True)
class Repair:
    """One change of one block."""

    document: str
    block: int
    find: str
    replace: str
    reason: str

    def __str__(self) -> str:
        change = f"{self.find!r} -> {self.replace!r}" if self.find else f"insert {self.replace!r}"
        return f"{self.document}, block {self.block}: {change} ({self.reason})"


_SHARDED_LOADER = (
    "data_loader_sharded = grain.DataLoader("
    "data_source=source, operations=transformations, sampler=sampler_sharded, worker_count=0)"
)
_TORCHVISION = "from tests.seeds.given import torchvision_without_its_operators; torchvision_without_its_operators()"

REPAIRS = (
    Repair("000", 3, "", "import tensorflow as tf", "the import comes one block later"),
    Repair("000", 3, "", "from tests.seeds.given import cross_entropy, model", "left to the reader"),
    Repair("000", 4, "", "from tests.seeds.given import normalize", "left to the reader"),
    Repair("000", 5, "", "from tests.seeds.given import normalize as preprocess", "is local to a function of block 3"),
    Repair("000", 6, "seed=42,", "seed=42, num_epochs=1,", "the sampler repeats for ever, and so would the loop"),
    Repair("000", 8, "", "from tests.seeds.given import your_preprocessing", "left to the reader"),
    Repair("000", 9, "", "from tests.seeds.given import augment_fn", "left to the reader"),
    Repair("000", 9, "/path/to", "HERE", "the stand-in's folder"),
    Repair("000", 10, "", "batch_size = 128", "is an argument in block 3"),
    Repair("001", 8, "/tmp/orbax", "HERE/orbax", "a folder of its own"),
    Repair("001", 9, "/tmp/orbax", "HERE/orbax", "a folder of its own"),
    Repair("002", 1, "", "import grain.python as grain\nimport numpy as np", "the slides show no imports"),
    Repair("002", 3, "drop_remainder=True)", "drop_remainder=True)\n]", "the slide lost its last line"),
    Repair("002", 4, "num_threads=0)", "num_threads=0)\n)", "the slide lost a bracket"),
    Repair("002", 6, "enables multiprocessing", "enables multiprocessing\n)", "the slide lost a bracket"),
    Repair("002", 6, "shape:\n", "shape: ", "the slide broke a string over two lines"),
    Repair("002", 8, "seed=42", "seed=42,\n    shard_options=shard_options,\n)", "the slide lost its last lines"),
    Repair("002", 9, "", _SHARDED_LOADER, "left to the reader"),
    Repair("002", 9, "", "from tests.seeds.given import initial_state", "left to the reader"),
    Repair("002", 10, "", "from tests.seeds.given import train_step", "left to the reader"),
    Repair("002", 10, "10000", "1000", "for time"),
    Repair("002", 10, "\n   if", "\n    if", "the slide lost an indent"),
    Repair("002", 10, "\\{step\\}", "{step}", "the slide put backslashes before brackets"),
    Repair("003", 4, "/tmp", "HERE", "a folder of its own, with the stand-ins in it"),
    Repair("003", 8, "", _TORCHVISION, "its wheel wants CUDA's torch"),
    Repair("003", 32, '["image"]', '["image"][:]', "columns are lazy since datasets 4"),
    Repair("003", 32, '["label"]', '["label"][:]', "columns are lazy since datasets 4"),
    Repair("004", 5, "/tmp/orbax", "HERE/orbax", "a folder of its own"),
    Repair("004", 6, "/tmp/orbax", "HERE/orbax", "a folder of its own"),
    Repair("004", 13, "", "import glob; filenames = sorted(glob.glob('HERE/parquet/*.parquet'))", "left to the reader"),
    Repair("004", 13, "", "parquet_dataset = grain.experimental", "the document does not import it"),
)


def repaired(block: Block) -> tuple[str, list[Repair]]:
    """The code of a block as it runs, and what was repaired in it."""
    code, made = block.code, []
    for repair in REPAIRS:
        if (repair.document, repair.block) == (block.document, block.number):
            code = apply(repair, code)
            made.append(repair)
    lines = code.split("\n")
    for i, line in enumerate(lines):
        if line.startswith("!"):
            lines[i], reason = _shell_line(line[1:])
            made.append(Repair(block.document, block.number, line, lines[i], reason))
    return "\n".join(lines), made


def apply(repair: Repair, code: str) -> str:
    """The code of a block after one repair."""
    if repair.find not in code:
        raise RepairError(f"There is nothing left to repair, or the document has changed: {repair}.")
    replace = repair.replace.replace("HERE", os.getcwd())
    return code.replace(repair.find, replace) if repair.find else f"{replace}\n{code}"


def _shell_line(command: str) -> tuple[str, str]:
    if command.startswith("pip "):
        return "", "installs what is installed"
    return f"from tests.seeds.given import shell; shell({command!r})", "a line for the shell"
