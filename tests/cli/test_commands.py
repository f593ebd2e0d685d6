"""The commands, each called as `main(arguments)`."""

import gzip
import json
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace import MapDataset
from headrace.__main__ import main
from headrace.cli import COMMANDS, machine
from headrace.cli.output import as_json
from headrace.errors import install_command
from headrace.sources import write_array_record, write_tfrecord

ROOT = Path(__file__).resolve().parents[2]
TFDS = ROOT / "tests" / "sources" / "fixtures" / "tfds" / "tfrecord"
SPLITS = {"train": 11, "test": 5}
PIPELINE = """
import headrace

NOT_A_DATASET = 5

def make():
    return headrace.MapDataset.range(12).shuffle(seed=1).map(square).to_iter_dataset().batch(4)

def square(x):
    return {"x": x * x}

def needs(size):
    return make().take(size)

def makes_a_list():
    return [1]

def fails():
    raise ValueError("no data today")

ds = make()
loader = headrace.load(range(7), num_epochs=1, batch_size=3)
"""


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    path = tmp_path_factory.mktemp("pipelines") / "train.py"
    path.write_text(PIPELINE)
    return path


@pytest.fixture(autouse=True)
def path_of_modules(monkeypatch):
    """Commands change it for the pipelines that they load."""
    monkeypatch.setattr("sys.path", sys.path.copy())


def out_of(capsys, *arguments, status=0):
    assert main([*map(str, arguments)]) == status
    out, err = capsys.readouterr()
    assert err == ""
    return out


def error_of(capsys, *arguments):
    """The only line that a command prints when it fails."""
    assert main([*map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headrace: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


# -------------------------------------------------------------------------------------------- in general


def test_the_console_script_is_this_function():
    with open(ROOT / "pyproject.toml", "rb") as f:
        assert tomllib.load(f)["project"]["scripts"] == {"headrace": "headrace.__main__:main"}


def test_version_and_help(capsys):
    for argument, expected in [("--version", f"headrace {headrace.__version__}\n"), ("--help", "inspect")]:
        with pytest.raises(SystemExit) as ended:
            main([argument])
        assert ended.value.code == 0
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: headrace {command} ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "required: COMMAND. See headrace --help."),
        (["inspekt"], "invalid choice: 'inspekt'"),
        (["head", "a", "-n", "0"], "must be a whole number of at least 1; got '0'. See headrace head --help."),
        (["bench", "a.py:ds", "--seconds", "x"], "must be a number above 0; got 'x'"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, expected, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err
    assert err.count("\n") == 1


# -------------------------------------------------------------------------------------------- pipelines by name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zzz", "has no `zzz`. It has ds, loader."),
        ("NOT_A_DATASET", "is int: it must be a dataset, a loader, or a function without arguments that returns one."),
        ("makes_a_list", "returns list: it must be a dataset"),
        ("needs", "needs arguments: give the name of a function that needs none."),
        ("fails", "ValueError: no data today (train.py:19, in fails)"),
    ],
)
def test_what_is_no_pipeline(name, expected, pipeline, capsys):
    assert expected in error_of(capsys, "explain", f"{pipeline}:{name}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import headrace\n\n1 / 0\n", "line 3: ZeroDivisionError: division by zero"),
        ("def f(:\n", "line 1: SyntaxError: "),
        ("def f():\n    return missing\n\nds = f()\n", "line 2, in f: NameError: name 'missing' is not defined"),
        ("import no_such_module_at_all\n", "line 1: ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("raise ValueError('a\\nb\\x1b[31mc')\n", "line 1: ValueError: a b\\x1b[31mc"),
    ],
)
def test_a_file_that_fails_says_its_last_line_and_place(text, expected, tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text(text)
    found = error_of(capsys, "explain", f"{path}:ds")
    assert f"{path}, {expected}" in found


def test_a_file_or_module_that_is_not_there(capsys, tmp_path):
    assert "There is no file" in error_of(capsys, "explain", tmp_path / "none.py:ds")
    assert "No module named 'no_such_module'" in error_of(capsys, "explain", "no_such_module:ds")


def test_a_dotted_module(tmp_path, monkeypatch, capsys):
    (tmp_path / "training_code").mkdir()
    (tmp_path / "training_code" / "mine.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    assert ".batch(4)" in out_of(capsys, "explain", "training_code.mine:make")


def test_a_file_may_have_the_name_of_a_library(tmp_path, capsys):
    path = tmp_path / "json.py"
    path.write_text(PIPELINE)
    assert ".batch(4)" in out_of(capsys, "explain", f"{path}:ds")
    assert json.loads("[1]") == [1]


# -------------------------------------------------------------------------------------------- explain and bench


def test_explain(pipeline, capsys):
    lines = out_of(capsys, "explain", pipeline).splitlines()  # without a name, `ds`
    assert lines[0].split() == ["operation", "where", "how", "line"]
    assert lines[1].startswith("MapDataset.range(12)")
    assert lines[3].startswith("  .map(square at train.py:9)  consumer")
    assert lines[3].endswith("train.py:7")


def test_the_document_shows_what_explain_prints(tmp_path, capsys):
    document = (ROOT / "docs" / "how_to" / "command_line.md").read_text()
    (tmp_path / "train.py").write_text(document.split("```python\n")[1].split("```")[0])
    shown = document.split("`headrace explain train.py:ds` prints\n\n```text\n")[1].split("```")[0]
    assert out_of(capsys, "explain", tmp_path / "train.py:ds") == shown


def test_explain_as_json(pipeline, capsys):
    found = json.loads(out_of(capsys, "explain", f"{pipeline}:loader", "--json"))
    assert [step["operation"].split("(")[0] for step in found["steps"]][-1] == ".batch"
    assert {"operation", "where", "how", "stage", "reason", "line"} == set(found["steps"][0])


@pytest.mark.parametrize("name", ["ds", "make", "loader"])
def test_bench(name, pipeline, capsys):
    assert "elements/s" in out_of(capsys, "bench", f"{pipeline}:{name}", "--seconds", "0.2")


def test_bench_as_json(pipeline, capsys):
    found = json.loads(out_of(capsys, "bench", f"{pipeline}:ds", "--seconds", "0.2", "--json"))
    assert {"operations", "rates", "best", "measured", "verdict", "tried", "threads"} == set(found)
    assert found["measured"] > 0


def test_an_error_of_a_pipeline_is_one_line(tmp_path, capsys):
    path = tmp_path / "bad.py"
    path.write_text(
        "import headrace\n\ndef fail(x):\n    raise ValueError('bad one')\n\n"
        "ds = headrace.MapDataset.range(3).map(fail).to_iter_dataset()\n"
    )
    found = error_of(capsys, "bench", f"{path}:ds", "--seconds", "1")
    assert "ValueError: bad one (bad.py:4, in fail)" in found
    assert "map(fail at bad.py:3)" in found  # the note names the operation


# -------------------------------------------------------------------------------------------- inspect and head


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_tfrecord([b"abc%d" % i for i in range(20)], folder / "a.tfrecord")
    np.save(folder / "c.npy", np.zeros((10, 4, 3), np.float32))
    rows = [{"text": "<b>" * i, "n": i} for i in range(9)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "e.jsonl").write_text(text)
    with gzip.open(folder / "f.jsonl.gz", "wt") as f:
        f.write(text)
    return folder


def inspected(capsys, *arguments):
    return json.loads(out_of(capsys, "inspect", *arguments, "--json"))


def test_inspect(data, capsys):
    path = data / "c.npy"
    lines = out_of(capsys, "inspect", path).splitlines()
    assert lines[:10] == [
        f"path       {path}",
        "format     NumPy",
        "files      1, 608 B",
        "records    10, 60 B each",
        "checksums  none",
        "",
        "Spec",
        "  record  float32[4, 3]",
        "",
        "First record",
    ]
    assert lines[10].startswith("float32[4, 3]")


def test_inspect_as_json(data, capsys):
    found = inspected(capsys, data / "e.jsonl")
    size = (data / "e.jsonl").stat().st_size
    assert found == {
        "path": str(data / "e.jsonl"),
        "format": "JSON lines",
        "files": [{"path": str(data / "e.jsonl"), "bytes": size}],
        "bytes": size,
        "splits": {},
        "split": None,
        "records": 9,
        "checksums": "none",
        "spec": {"text": "str", "n": "int"},
        "spec_is_of_first_record": True,
        "first_record": {"text": "", "n": 0},
        "example": None,
    }


def test_inspect_a_stream(data, capsys):
    found = inspected(capsys, data / "f.jsonl.gz")
    assert (found["records"], found["first_record"]) == (None, {"text": "", "n": 0})
    assert found["checksums"] == "all bytes, by gzip or zlib"
    assert "unknown without reading everything: the data is a stream" in out_of(capsys, "inspect", data / "f.jsonl.gz")


def test_inspect_a_folder_of_shards(tmp_path, capsys):
    write_array_record([b"%d" % i for i in range(30)], tmp_path / "a.array_record", num_shards=7)
    found = inspected(capsys, tmp_path)
    assert (found["format"], len(found["files"]), found["records"]) == ("ArrayRecord", 7, 30)
    assert found["bytes"] == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert "… and 2 more" in out_of(capsys, "inspect", tmp_path)
    assert len(inspected(capsys, tmp_path / "*-0000[01]-of-*")["files"]) == 2


def test_inspect_examples(tmp_path, capsys):
    write_tfrecord([{"label": i, "name": f"n{i}"} for i in range(3)], tmp_path / "a.tfrecord")
    assert inspected(capsys, tmp_path / "a.tfrecord")["example"]["label"] == 0
    assert "It is a tf.train.Example with the features" in out_of(capsys, "inspect", tmp_path / "a.tfrecord")
    (shown,) = json.loads(out_of(capsys, "head", tmp_path / "a.tfrecord", "-n", "1", "--parse-examples", "--json"))
    assert set(shown) == {"label", "name"}


def test_inspect_tfds(tmp_path, capsys):
    pytest.importorskip("cv2")
    folder = shutil.copytree(TFDS, tmp_path / "small", ignore=shutil.ignore_patterns(".*"))
    num_files = len(list(folder.iterdir()))
    found = inspected(capsys, folder, "--split", "train[:2]")
    assert found["format"] == "TFDS"
    assert (found["splits"], found["split"], found["records"]) == (SPLITS, "train[:2]", 2)
    assert len(found["files"]) == num_files
    (folder / ".small-train.tfrecord-00000-of-00003.index").write_bytes(b"kept")
    assert len(inspected(capsys, folder)["files"]) == num_files
    assert inspected(capsys, folder)["split"] == "train"
    assert "splits     " + ", ".join(f"{name} {count}" for name, count in SPLITS.items()) in out_of(
        capsys, "inspect", folder
    )


def test_inspect_hugging_face(tmp_path, capsys):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [1.5, 2.5, 3.5], "text": ["a", "b", "c"]})
    datasets.DatasetDict({"dev": rows, "test": rows.select(range(2))}).save_to_disk(tmp_path / "two")
    rows.save_to_disk(tmp_path / "one")
    capsys.readouterr()  # its progress bars
    found = inspected(capsys, tmp_path / "two")
    assert (found["format"], found["splits"], found["split"]) == ("Hugging Face", {"dev": 3, "test": 2}, "dev")
    assert found["first_record"] == {"x": 1.5, "text": "a"}
    assert inspected(capsys, tmp_path / "two", "--split", "test")["records"] == 2
    found = inspected(capsys, tmp_path / "one")
    assert (found["splits"], found["split"], found["records"]) == ({}, None, 3)


def test_inspect_an_address(data, capsys):
    pytest.importorskip("fsspec")
    found = inspected(capsys, f"file://{data}/a.tfrecord")
    assert (found["path"], found["records"]) == (f"file://{data}/a.tfrecord", 20)
    assert found["bytes"] == (data / "a.tfrecord").stat().st_size
    failed = error_of(capsys, "inspect", f"file://{data}/none.npy?X-Amz-Signature=secret")
    assert "none.npy" in failed
    assert "secret" not in failed


def test_inspect_nothing(data, tmp_path, capsys):
    assert "No file matches" in error_of(capsys, "inspect", tmp_path / "none.parquet")
    assert "is a folder with " in error_of(capsys, "inspect", data)
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    assert inspected(capsys, tmp_path / "empty.npy")["first_record"] is None
    assert "First record" not in out_of(capsys, "inspect", tmp_path / "empty.npy")


def test_head(data, capsys):
    assert out_of(capsys, "head", data / "e.jsonl", "-n", "2").splitlines() == [
        "[0]",
        "text  str[0]  ''",
        "n     int     0",
        "",
        "[1]",
        "text  str[3]  '<b>'",
        "n     int     1",
    ]
    found = json.loads(out_of(capsys, "head", data / "e.jsonl", "--json"))
    assert found == [{"text": "<b>" * i, "n": i} for i in range(5)]
    assert len(json.loads(out_of(capsys, "head", data / "f.jsonl.gz", "--json", "-n", "100"))) == 9


def test_head_of_a_pipeline(pipeline, capsys):
    (found,) = json.loads(out_of(capsys, "head", f"{pipeline}:make", "-n", "1", "--json"))
    expected = [x * x for x in MapDataset.range(12).shuffle(seed=1)[:4]]
    assert found == {"x": {"dtype": "int64", "shape": [4], "values": expected}}
    assert out_of(capsys, "head", f"{pipeline}:loader", "-n", "1").splitlines() == ["[0]", "int64[3]  0 1 2"]


def test_values_as_json():
    assert as_json({"a": (np.float32(0.5), np.int8(3)), 1: [True, None, float("nan")]}) == {
        "a": [0.5, 3],
        "1": [True, None, "nan"],
    }
    large = as_json(np.zeros((100, 50), np.uint8))
    assert (large["shape"], len(large["values"])) == ([100, 50], 1000)
    assert as_json(np.longdouble(2)) == "2.0"
    assert as_json({1, 2}) == {"type": "set", "repr": "{1, 2}"}
    for odd in (np.datetime64("2020-01-01"), np.array([1j]), np.array([b"x", b"yy"]), object()):
        json.dumps(as_json(odd))


# -------------------------------------------------------------------------------------------- doctor


def test_doctor_of_a_machine(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(machine.LIBRARIES, "imaginary", ("dreams", ("numpy", "no-such-library")))
    found = json.loads(out_of(capsys, "doctor", "--json"))
    assert found["cores"]["usable"] >= 1
    assert found["memory"]["bytes"] > found["memory"]["available_bytes"] > 0
    assert found["limits"]["open_files"]["in_use"] > 0
    assert found["libraries"][-1] == {
        "for": "dreams",
        "packages": {"numpy": np.__version__, "no-such-library": None},
        "missing": f"no-such-library: {install_command('imaginary')}",
    }
    shown = out_of(capsys, "doctor")
    assert f"headrace {headrace.__version__}" in " ".join(shown.split())
    assert f"no-such-library: {install_command('imaginary')}" in shown


def test_doctor_knows_all_extras():
    with open(ROOT / "pyproject.toml", "rb") as f:
        extras = tomllib.load(f)["project"]["optional-dependencies"]
    known = {extra: list(packages) for extra, (_, packages) in machine.LIBRARIES.items()}
    assert known == {extra: [name.split(">")[0] for name in packages] for extra, packages in extras.items()}


def test_doctor_gives_advice(tmp_path):
    found = machine.inspect_machine() | {
        "limits": {"open_files": {"now": 256, "at_most": 4096}},
        "memory": {"bytes": 8 << 30, "available_bytes": 1 << 20},
        "cores": {"usable": 8, "in_machine": 64, "quota": 2.5},
        "cache": {"folder": "/proc/cache", "is_writable": False},
    }
    few, cores, memory, cache = machine._advice(found)
    assert "ulimit -n 4096" in few
    assert "the CPU time of 2.5 cores" in cores
    assert "0.0 GiB of memory" in memory
    assert "HEADRACE_CACHE" in cache
    assert machine._is_writable(str(tmp_path / "not" / "yet"))
