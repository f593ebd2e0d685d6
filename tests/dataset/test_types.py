"""Types that editors can use: a user's program under pyright, in strict mode."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from tests.support.proc import LIMIT_S

PROGRAM = {
    "MapDataset.range(10)": "MapDataset[int]",
    "MapDataset.source(['a', 'b'])": "MapDataset[str]",
    "MapDataset.range(10).map(lambda x: str(x))": "MapDataset[str]",
    "MapDataset.range(10).map(str).filter(lambda s: bool(s)).shuffle(seed=1).repeat(2)": "MapDataset[str]",
    "MapDataset.range(10).random_map(lambda x, rng: x + float(rng.random()), seed=1)": "MapDataset[float]",
    "MapDataset.range(10).map_with_index(lambda i, x: (i, str(x)))": "MapDataset[tuple[int, str]]",
    "MapDataset.range(10).flat_map(lambda x: [str(x)], max_fan_out=1)": "MapDataset[str]",
    "MapDataset.range(10).map(MapTransform(str))": "MapDataset[Any]",
    "MapDataset.range(10).batch(2)": "MapDataset[Any]",
    "MapDataset.range(10).batch(2, batch_fn=list)": "MapDataset[list[int]]",
    "MapDataset.zip([MapDataset.range(2), MapDataset.range(2)])": "MapDataset[tuple[Any, ...]]",
    "MapDataset.range(10).map(str)[0]": "str",
    "MapDataset.range(10).map(str)[2:4]": "MapDataset[str]",
    "MapDataset.range(10).map(float).to_iter_dataset()": "IterDataset[float]",
    "MapDataset.range(10).mp_prefetch(2)": "IterDataset[int]",
    "STREAM.map(lambda x: [x]).window_shuffle(3, seed=1).mp_prefetch(2)": "IterDataset[list[int]]",
    "STREAM.filter(lambda x: x > 2).take(3).prefetch(2)": "IterDataset[int]",
    "STREAM.flat_map(lambda x: [str(x)]).random_map(lambda x, rng: (x, rng.random()), seed=1)": (
        "IterDataset[tuple[str, float]]"
    ),
    "next(iter(STREAM))": "int",
    "[x for x in MapDataset.range(3).map(str)]": "list[str]",
}


def test_what_type_checkers_know_of_a_users_program(tmp_path):
    pytest.importorskip("pyright")
    lines = ["from headrace import MapDataset", "from headrace.python import MapTransform"]
    lines += ["STREAM = MapDataset.range(10).to_iter_dataset()", *(f"reveal_type({text})" for text in PROGRAM)]
    (tmp_path / "program.py").write_text("\n".join(lines))
    package = Path(headrace.__file__).parent.parent
    settings = {"include": ["program.py"], "strict": ["program.py"], "extraPaths": [str(package)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [each["message"] for each in found if each["severity"] != "information"] == []
    types = [each["message"].rsplit(' is "', 1)[1].rstrip('"') for each in found]
    assert dict(zip(PROGRAM, types, strict=True)) == PROGRAM
