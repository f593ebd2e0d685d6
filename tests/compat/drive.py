"""Runs programs of `programs/`, with Grain or with Headrace in its place, and writes down what they got.

A program has `open_pipeline(folder)`, which makes an iterator in the manner of its client, `save(iterator, folder)` and
`restore(iterator, folder)`. It is iterated to its end or for `STEPS` steps and saved on the way; then, with Headrace, it
is made anew, restored, and iterated again.

    python -m tests.compat.drive (grain|headrace) FOLDER OUTPUT PROGRAM...
"""

import importlib
import itertools
import pickle
import sys
import traceback
from pathlib import Path

import numpy as np

STEPS, SAVED_AT = 9, 4


def main() -> None:
    library, folder, output, *names = sys.argv[1:]
    if library == "headrace":
        import headrace

        headrace.as_grain()
    else:
        from absl import flags

        flags.FLAGS(["program"])  # Grain's workers need them
    found = {}
    for name in names:
        (states := Path(output) / f"{library} {name}").mkdir()
        try:
            found[name] = run(library, name, Path(folder), states)
        except Exception:
            found[name] = traceback.format_exc()
    import grain

    (Path(output) / library).write_bytes(pickle.dumps((grain.__name__, found)))


def run(library: str, name: str, folder: Path, states: Path) -> tuple[list, list]:
    """The batches of a program, and those after it was restored."""
    program = importlib.import_module(f"tests.compat.programs.{name}")
    iterator = program.open_pipeline(folder)
    batches = take(iterator, SAVED_AT)
    program.save(iterator, states)
    batches += take(iterator, STEPS - SAVED_AT)
    if library == "grain":  # which loses its place in some
        return batches, []
    again = program.open_pipeline(folder)
    program.restore(again, states)
    return batches, take(again, STEPS - SAVED_AT)


def take(iterator, count: int) -> list:
    return [plain(batch) for batch in itertools.islice(iterator, count)]


def plain(tree):
    """A batch as dicts, tuples and arrays that any process can unpickle."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if hasattr(tree, "__dataclass_fields__"):
        return {key: plain(getattr(tree, key)) for key in tree.__dataclass_fields__}
    if isinstance(tree, list | tuple):
        return tuple(map(plain, tree))
    return np.array(tree)


if __name__ == "__main__":
    main()
