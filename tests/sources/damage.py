"""Files that are damaged in many ways, and read in a process that may die of them.

`python -m tests.sources.damage TASK FORMAT FOLDER …` reads what is in `FOLDER/intact` after damage:

- `run FIRST STOP`: each of these mutations of the files;
- `describe FIRST STEP`: each way to make a JSON description wrong, or one in so many, from a number on;
- `open`: changes while the files are open.

It prints a line before each and one after it, so that whoever started it knows which one it died of.
"""

import contextlib
import faulthandler
import io
import json
import os
import random
import resource
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import HeadraceError
from tests.sources.intact import FORMS

MEMORY_BYTES = 1 << 30  # more than the process has before the first mutation
HANGS_AFTER_S = 20


def read_all(source: Any) -> Iterator[Any]:
    """Everything in a source or stream: one element, a block in another order, and all in order."""
    if not hasattr(source, "__getitem__"):
        yield from source
        return
    length = len(source)
    if length:
        yield source[length // 2]
    some = np.random.default_rng(0).integers(0, length, 64) if length else np.empty(0, np.int64)
    if hasattr(source, "__getcolumns__"):
        yield source.__getcolumns__(some)
    if hasattr(source, "__getitems__"):
        yield source.__getitems__(some.tolist())
    for start in range(0, length, 32):
        indices = np.arange(start, min(start + 32, length))
        if hasattr(source, "__getcolumns__"):
            yield source.__getcolumns__(indices)
        elif hasattr(source, "__getitems__"):
            yield source.__getitems__(indices.tolist())
        else:
            yield from (source[i] for i in indices.tolist())


# ---------------------------------------------------------------------------------------------- damage


def damaged(content: bytes, rng: random.Random) -> bytes:
    """One of several kinds of damage."""
    if not content:
        return rng.randbytes(rng.randrange(1, 16))
    changed, size = bytearray(content), len(content)
    # Half of all damage is where most formats say how long and where things are.
    place = rng.choice([rng.randrange(size), rng.randrange(min(size, 1024)), size - 1 - rng.randrange(min(size, 1024))])
    kind = rng.randrange(8)
    if kind in (0, 1):
        for _ in range(rng.choice([1, 1, 3])):
            changed[min(size - 1, place + rng.randrange(8))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        changed = changed[:place]
    elif kind in (3, 4):
        width = rng.choice([1, 2, 4, 8])
        numbers = [
            0,
            1,
            (1 << 8 * width - 1) - 1,
            (1 << 8 * width) - 1,
            1 << 8 * width - 1,
            rng.getrandbits(8 * width),
            size,
        ]
        number = rng.choice(numbers) & ((1 << 8 * width) - 1)
        at = place - place % rng.choice([1, width])
        changed[at : at + width] = number.to_bytes(width, rng.choice(["little", "big"]))
    elif kind == 5:
        end = min(size, place + rng.choice([4, 16, 64, 512]))
        changed[place:end] = bytes(end - place)
    elif kind == 6:
        end = min(size, place + rng.choice([4, 16, 64]))
        changed[place:end] = rng.randbytes(end - place)
    else:
        changed[place:place] = rng.randbytes(rng.choice([1, 4, 8]))
    return bytes(changed)


def mutate(path: Path, rng: random.Random) -> str:
    """Damages a file, or one of those in a folder; says which."""
    inside = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    chosen = rng.choice(inside)
    chosen.write_bytes(damaged(chosen.read_bytes(), rng))
    return str(chosen.relative_to(path.parent))


def outcome_of(call: Callable[[], Any]) -> str:
    """What comes of a call: `read`, `refused`, or the error that it should not have raised."""
    try:
        call()
    except (HeadraceError, FileNotFoundError) as e:
        return f"refused ({type(e).__name__}: {e})"
    except BaseException as e:
        return f"WRONG {type(e).__name__}: {e}"
    return "read"


def run(name: str, folder: Path, first: int, stop: int) -> None:
    form = FORMS[name]
    intact = folder / "intact" / form.name
    _bound_memory(lambda: [None for _ in read_all(form.open(_copied(intact, folder / "first")))])
    for number in range(first, stop):
        print(f"{number} begins", flush=True)
        path = _copied(intact, folder / f"try-{number % 2}")
        where = mutate(path, random.Random(f"{name} {number}"))
        with _watched():
            outcome = outcome_of(lambda path=path: [None for _ in read_all(form.open(path))])
        print(f"{number} {where}: {' '.join(outcome.split())}", flush=True)


def _bound_memory(warm_up: Callable[[], Any]) -> None:
    """Lets the process have some memory more than it needs for a call, which imports what there is to import."""
    warm_up()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Ends the process when something hangs."""
    faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    faulthandler.cancel_dump_traceback_later()


WRONG_VALUES = (None, -1, 2**63, "x", [], {}, 1.5, True, "../x", "/x", "é\0", [[]], {"a": {"b": None}})


def wrong_versions(value: Any) -> Iterator[tuple[str, Any]]:
    """A JSON value with each value in it replaced by each wrong one, and with each member left out; and where."""
    for wrong in WRONG_VALUES:
        yield f" = {wrong!r}", wrong
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        rest = (
            {k: v for k, v in value.items() if k != key} if isinstance(value, dict) else value[:key] + value[key + 1 :]
        )
        yield f".{key} left out", rest
        for where, version in wrong_versions(child):
            changed = value.copy()
            changed[key] = version
            yield f".{key}{where}", changed


def descriptions(path: Path) -> Iterator[tuple[Path, str, bytes]]:
    """Each JSON file in a folder, as its place in it, with each thing that is wrong with it, and its content then."""
    for file in sorted(path.rglob("*")):
        if file.suffix == ".json" or file.name in (".zarray", ".zgroup", ".zattrs"):
            content = json.loads(file.read_text())
            deep: Any = []
            for where, version in wrong_versions(content):
                yield file.relative_to(path), where, json.dumps(version).encode()
            for _ in range(400):
                deep = {"sequence": {"feature": deep}}
            yield file.relative_to(path), "deep", json.dumps({"featuresDict": {"features": {"x": deep}}}).encode()
            yield file.relative_to(path), "deeper", b'{"a":' * 100_000
            yield file.relative_to(path), "not UTF-8", b'{"a": "\xff"}'
            yield file.relative_to(path), "half a surrogate", b'{"name": "\\ud800"}'
            yield file.relative_to(path), "empty", b""


def describe_wrongly(name: str, folder: Path, first: int, step: int) -> None:
    """Opens a folder with each of its descriptions made wrong in each way, or one in `step`, and reads some elements."""
    form = FORMS[name]
    intact = folder / "intact" / form.name
    path = _copied(intact, folder / "wrong")
    _bound_memory(lambda: form.open(path)[0])
    for number, (file, where, content) in enumerate(descriptions(intact)):
        if number < first or number % step:
            continue
        print(f"{number} begins", flush=True)
        (path / file).write_bytes(content)
        with _watched():
            outcome = outcome_of(lambda: _some(form.open(path)))
        (path / file).write_bytes((intact / file).read_bytes())
        print(f"{number} {file}{where}: {' '.join(outcome.split())}", flush=True)


def _some(source: Any) -> None:
    _ = [source[i] for i in range(min(3, len(source)))]
    _ = repr(source), source.element_spec if hasattr(source, "element_spec") else None
    _ = source.class_names if hasattr(source, "class_names") else None


def change_while_open(name: str, folder: Path) -> None:
    """Opens files, reads one element, changes them in several ways, and reads the rest."""
    form = FORMS[name]
    for how in ("cut to nothing", "cut in half", "overwritten"):
        print(f"{how} begins", flush=True)
        path = _copied(folder / "intact" / form.name, folder / how.replace(" ", "-"))
        source = form.open(path)
        _ = source[0]
        for one in [path] if path.is_file() else sorted(path.rglob("*.arrow")):
            content = one.read_bytes()
            kept = {"cut to nothing": b"", "cut in half": content[: len(content) // 2]}.get(how, content[::-1])
            with open(one, "r+b") as file:
                file.write(kept)
                file.truncate()
            os.utime(one, (1, 1))
        outcome = outcome_of(lambda source=source: [None for _ in read_all(source)])
        print(f"{how}: {' '.join(outcome.split())}", flush=True)


def _copied(path: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    target = folder / path.name
    shutil.copytree(path, target) if path.is_dir() else shutil.copy(path, target)
    return target


if __name__ == "__main__":
    task, name, folder, *numbers = sys.argv[1:]
    os.environ.setdefault("HEADRACE_CACHE", f"{folder}/cache")
    {"run": run, "open": change_while_open, "describe": describe_wrongly}[task](name, Path(folder), *map(int, numbers))
