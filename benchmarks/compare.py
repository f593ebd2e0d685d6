"""Rows of this tree beside the same rows of another commit: `python -m benchmarks.compare BASE range_map mix`.

Each side runs its own benchmarks with its own `headrace`, in processes that take turns. A row is a ratio to a peer
timed in the same process, so what slows the machine for a while slows both. `change` is this ratio over that of the
base: above 1 is better, even in rows where a lower ratio is better.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 5


def run_rows(tree: Path, names: list[str]) -> dict[str, tuple[float, bool]]:
    """The ratio of each row of a tree, and whether higher is better."""
    script = (
        "import json, sys; from benchmarks.__main__ import run_rows; import headrace; "
        "assert headrace.__file__.startswith(sys.argv[1]), headrace.__file__; "
        "print(json.dumps([(row.work, row.ratio, row.higher_is_better) for row in run_rows(sys.argv[2:])]))"
    )
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
    command = [sys.executable, "-c", script, str(tree / "src"), *names]
    done = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return {work: (ratio, higher) for work, ratio, higher in json.loads(done.stdout.splitlines()[-1])}


def compare(base: str, names: list[str]) -> None:
    """Print a table of medians, with the lowest and highest of `ROUNDS` runs."""
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "base"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", other, base], cwd=ROOT, check=True)
        try:
            found: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for _ in range(ROUNDS):
                old = run_rows(other, names)
                new = run_rows(ROOT, names)
                for work, (ratio, higher) in new.items():
                    if work in old:  # a row may be new
                        before = old[work][0]
                        found[work].append((before, ratio) if higher else (1 / before, 1 / ratio))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", other], cwd=ROOT, check=True)
    print(f"\n| work | {base} | this tree | change | lowest | highest |\n|---|---|---|---|---|---|")
    for work, pairs in found.items():
        changes = [new / old for old, new in pairs]
        old, new = (statistics.median(side) for side in zip(*pairs, strict=True))
        spread = f"{min(changes):.2f} | {max(changes):.2f}"
        print(f"| {work} | {old:.3g} | {new:.3g} | {statistics.median(changes):.2f} | {spread} |")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python -m benchmarks.compare BASE ROW [ROW …]")
    compare(sys.argv[1], sys.argv[2:])
