"""Runs one document, block after block in one namespace as a notebook would, in a process of its own.

By hand: `python -m tests.seeds.run 001`, in the repository's folder, prints each block's repairs and what became of it.
"""

import contextlib
import io
import json
import linecache
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import headrace
from tests.seeds import claims, documents, repairs

REPOSITORY = Path(__file__).resolve().parents[2]
REPORT = "report.json"
TIME_LIMIT_S = 600


@dataclass(frozen=True)
class Outcome:
    """What became of a block: the traceback of its error, or of the claim that does not hold; else None."""

    number: int
    line: int
    repairs: list[str]
    seconds: float
    error: str | None


def run(document: str, folder: str) -> dict[int, Outcome]:
    """Runs a document in another process, with an empty folder as its working and home folder."""
    # The stand-ins are made in another process still, so that the document's own imports come in its own order.
    for module in ("tests.seeds.stand_ins", "tests.seeds.run"):
        command = [sys.executable, "-m", module, document, folder]
        done = subprocess.run(
            command, env=_environment(folder), cwd=folder, capture_output=True, text=True, timeout=TIME_LIMIT_S
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-5000:]}")
    outcomes = json.loads(Path(folder, REPORT).read_text())
    return {outcome["number"]: Outcome(**outcome) for outcome in outcomes}


def _environment(folder: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TFDS_"))}
    return kept | {
        "HOME": folder,
        "PYTHONPATH": str(REPOSITORY),
        "HF_HOME": os.path.join(folder, "hf"),
        "HF_HUB_OFFLINE": "1",
        "MPLBACKEND": "agg",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }


def _run_here(document: str) -> list[Outcome]:
    """Runs a document in this process, whose folders `run` has set."""
    headrace.as_grain()
    warnings.filterwarnings("error", module=r"headrace(\.|$)")
    # What the blocks define belongs to `__main__`, as in a notebook.
    main = sys.modules["__main__"] = ModuleType("__main__")
    printed: dict[int, str] = {}
    return [_run_block(block, main, printed) for block in documents.blocks(document)]


def _run_block(block: documents.Block, main: ModuleType, printed: dict[int, str]) -> Outcome:
    start, error, made, output = time.perf_counter(), None, [], io.StringIO()
    name = f"<{block.document}, block {block.number}>"
    try:
        code, made = repairs.repaired(block)
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        with contextlib.redirect_stdout(output):
            exec(compile(code, name, "exec"), vars(main))
        printed[block.number] = output.getvalue()
        claims.check(block, vars(main), printed)
    except Exception:
        error = f"{traceback.format_exc()}\nThe block printed:\n{output.getvalue()[-2000:]}"
    seconds = round(time.perf_counter() - start, 2)
    return Outcome(block.number, block.line, [str(repair) for repair in made], seconds, error)


def _main(document: str, folder: str | None = None) -> None:
    if folder:
        outcomes = _run_here(document)
        Path(folder, REPORT).write_text(json.dumps([asdict(outcome) for outcome in outcomes]))
        return
    with tempfile.TemporaryDirectory() as empty:
        for outcome in run(document, empty).values():
            print(f"block {outcome.number}, line {outcome.line}: {outcome.seconds} s", *outcome.repairs, sep="\n    ")
            if outcome.error:
                print(outcome.error)


if __name__ == "__main__":
    _main(*sys.argv[1:])
