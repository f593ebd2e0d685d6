"""Converting from any format to any other and back keeps elements equal, or is an error that leaves no file."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from headrace.__main__ import main
from headrace.sources import TfdsDataSource, opening
from headrace.sources.writers import HOLD_RECORDS, writer_of
from tests.sources.elements import assert_same
from tests.sources.test_read_back import HOLD_TREES, RICH, read, write

ROWS = [{"x": i, "y": f"t{i}", "z": i / 2, "even": i % 2 == 0} for i in range(9)]
EVERY = [*HOLD_TREES, "csv"]
FIXTURES = Path(__file__).parents[1] / "sources" / "fixtures"


def convert(*arguments):
    return main(["convert", *map(str, arguments), "--quiet"])


@pytest.mark.parametrize("other", EVERY)
@pytest.mark.parametrize("suffix", EVERY)
def test_rows_go_there_and_back(tmp_path, suffix, other):
    (path,) = write(ROWS, tmp_path / f"a.{suffix}")
    assert convert(path, tmp_path / f"b.{other}") == 0
    assert convert(tmp_path / f"b.{other}", tmp_path / f"c.{suffix}") == 0
    assert_same(ROWS, read([str(tmp_path / f"b.{other}")]))
    assert_same(ROWS, read([str(tmp_path / f"c.{suffix}")]))


@pytest.mark.parametrize("other", EVERY)
@pytest.mark.parametrize("suffix", HOLD_TREES)
def test_trees_go_there_and_back_or_nowhere(tmp_path, suffix, other, capsys):
    (path,) = write(RICH, tmp_path / f"a.{suffix}")
    if other == "csv":
        assert convert(path, tmp_path / "b.csv", "--shards", 2) == 1
        assert "but CSV holds only int64, float64, bools and text" in capsys.readouterr().err
        assert not [name for name in os.listdir(tmp_path) if "b" in name.partition(".")[0] or name.startswith(".b")]
        return
    assert convert(path, tmp_path / f"b.{other}") == 0
    assert convert(tmp_path / f"b.{other}", tmp_path / f"c.{suffix}") == 0
    assert_same(RICH, read([str(tmp_path / f"b.{other}")]))
    assert_same(RICH, read([str(tmp_path / f"c.{suffix}")]))


@pytest.mark.parametrize("other", HOLD_TREES)
@pytest.mark.parametrize("suffix", ["tfrecord", "array_record"])
def test_records_go_there_and_back(tmp_path, suffix, other):
    records = [b"", b"one", "zwölf".encode()]
    (path,) = write(records, tmp_path / f"a.{suffix}")
    assert convert(path, tmp_path / f"b.{other}") == 0
    assert convert(tmp_path / f"b.{other}", tmp_path / f"c.{suffix}") == 0
    assert list(opening.open(tmp_path / f"b.{other}")) == records
    assert list(opening.open(tmp_path / f"c.{suffix}")) == records


@pytest.mark.parametrize("other", HOLD_TREES)
def test_lines_of_text_and_arrays_of_files_are_elements(tmp_path, other):
    (tmp_path / "a.txt").write_text("one\nzwölf\n")
    assert convert(tmp_path / "a.txt", tmp_path / f"b.{other}") == 0
    assert_same(["one", "zwölf"], read([str(tmp_path / f"b.{other}")]))
    array = np.arange(24, dtype=np.int16).reshape(4, 2, 3)
    np.save(tmp_path / "a.npy", array)
    assert convert(tmp_path / "a.npy", tmp_path / f"c.{other}") == 0
    assert_same(array, read([str(tmp_path / f"c.{other}")]))


@pytest.fixture
def images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for i, name in enumerate(("cat/0.png", "dog/1.png", "dog/2.png")):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((4 + i, 5, 3), i * 9, np.uint8)).save(tmp_path / "images" / name)
    return tmp_path / "images"


@pytest.mark.parametrize("suffix", HOLD_TREES)
def test_images_stay_files_unless_they_are_to_be_decoded(tmp_path, images, suffix, capsys):
    files = [path.read_bytes() for path in sorted(images.rglob("*.png"))]
    labels = [0, 1, 1]
    if suffix == "jsonl":
        assert convert(images, tmp_path / "a.jsonl") == 1
        assert "JSON cannot hold this record: bytes that are not UTF-8" in capsys.readouterr().err
    else:
        assert convert(images, tmp_path / f"a.{suffix}") == 0
        expected = [{"image": file, "label": label} for file, label in zip(files, labels, strict=True)]
        assert_same(expected, read([str(tmp_path / f"a.{suffix}")]))
    assert convert(images, tmp_path / f"b.{suffix}", "--decode") == 0
    decoded = [{"image": np.full((4 + i, 5, 3), i * 9, np.uint8), "label": labels[i]} for i in range(3)]
    assert_same(decoded, read([str(tmp_path / f"b.{suffix}")]))


@pytest.mark.parametrize("decode", [False, True])
def test_images_of_tfds_stay_files_unless_they_are_to_be_decoded(tmp_path, decode):
    folder = next(path.parent for path in sorted((FIXTURES / "tfds").rglob("dataset_info.json")))
    copied = shutil.copytree(folder, tmp_path / "tfds")
    source = TfdsDataSource(copied, decode=decode)
    assert convert(copied, tmp_path / "a.array_record", *["--decode"] * decode) == 0
    assert_same(source, read([str(tmp_path / "a.array_record")]))


@pytest.mark.parametrize("decode", [False, True])
def test_images_of_hugging_face_stay_files_unless_they_are_to_be_decoded(tmp_path, images, decode):
    datasets = pytest.importorskip("datasets")
    files = [path.read_bytes() for path in sorted(images.rglob("*.png"))]
    columns = {"image": [{"bytes": file, "path": None} for file in files], "n": [1, 2, 3]}
    columns["image"][2] = {"bytes": None, "path": str(images / "dog" / "2.png")}
    columns["several"] = [[{"bytes": file, "path": None}] * 2 for file in files]
    kinds = {"image": datasets.Image(), "n": datasets.Value("int8"), "several": datasets.List(datasets.Image())}
    datasets.Dataset.from_dict(columns, features=datasets.Features(kinds)).save_to_disk(tmp_path / "saved")
    assert convert(tmp_path / "saved", tmp_path / "a.parquet", *["--decode"] * decode) == 0
    made = [np.full((4 + i, 5, 3), i * 9, np.uint8) for i in range(3)] if decode else files
    expected = [{"image": made[i], "n": np.int8(i + 1), "several": [made[i]] * 2} for i in range(3)]
    assert_same(expected, opening.open(tmp_path / "a.parquet"))


def test_every_writer_is_tried():
    assert {writer_of(f"a.{suffix}").__name__ for suffix in EVERY} == {
        *(f"write_{name}" for name in ("array_record", "tfrecord", "parquet", "arrow", "csv", "json_lines"))
    }
    assert len(HOLD_RECORDS) == 2
