"""The documents in shared/seeds, beside the repository, and the blocks of code in them.

A document is named by the three digits its file's name starts with; its blocks are numbered from one.
"""

import re
from dataclasses import dataclass
from pathlib import Path

SHARED = Path(__file__).resolve().parents[3] / "shared"
FOLDER = SHARED / "seeds"
MNIST = SHARED / "data" / "mnist"

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_CELL_HEADER = re.compile(r"\A(?:---\n.*?^---\n|(?::[^\n]*\n)+)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Document:
    """A document, by name, and the modules and folders without which it cannot run."""

    name: str
    modules: tuple[str, ...]
    folders: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Block:
    """One block of code, and the line of the document where its fence is."""

    document: str
    number: int
    line: int
    code: str


DOCUMENTS = (  # in an order in which one in three, as `make test` runs, are two that take little time
    Document(
        "001",
        ("jax", "orbax.checkpoint", "tensorflow", "tensorflow_datasets", "array_record", "cv2", "PIL", "matplotlib"),
    ),
    Document(
        "000",
        ("jax", "tensorflow", "tensorflow_datasets", "datasets", "transformers", "tokenizers", "PIL"),
        (MNIST,),
    ),
    Document(
        "003",
        ("jax", "torch", "torchvision", "PIL", "tensorflow", "tensorflow_datasets", "datasets"),
        (MNIST,),
    ),
    Document("002", ("jax",)),
    Document(
        "004",
        ("jax", "orbax.checkpoint", "tensorflow", "tensorflow_datasets", "array_record", "PIL", "pyarrow"),
        (MNIST,),
    ),
)


def blocks(document: str) -> list[Block]:
    """The blocks of a document, in order."""
    (path,) = FOLDER.glob(f"{document}_*.txt")
    text = path.read_text()
    return [
        Block(document, number, text.count("\n", 0, match.start()) + 1, _CELL_HEADER.sub("", match[1]))
        for number, match in enumerate(_FENCE.finditer(text), start=1)
    ]
