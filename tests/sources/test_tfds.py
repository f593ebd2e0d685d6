"""Folders that TensorFlow Datasets prepared, against what that library reads from them.

Most tests read `fixtures/tfds`, which it wrote, and need neither it nor TensorFlow; the last ones prepare folders anew.
"""

import json
import pickle
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from headrace import MapDataset
from headrace.errors import DataError, PipelineError
from headrace.sources.array_record import ArrayRecordDataSource
from headrace.sources.tfds import Piece, TfdsDataSource, pieces_of
from headrace.sources.tfrecord import TFRecordDataSource
from headrace.testing import assert_equal
from tests.sources.fixtures import make_tfds
from tests.sources.fixtures.tfrecords import write

pytest.importorskip("cv2")

FIXTURE = Path(__file__).parent / "fixtures" / "tfds"
REPOSITORY = Path(__file__).resolve().parents[2]
READ = pickle.loads((FIXTURE / "read.pickle").read_bytes())


def expected(read):
    """Elements of some splits, from what the library reads of `train` and `test`."""
    return {
        "train": read["train"],
        "test": read["test"],
        "train[3:-2]+test[:40%]": read["train"][3:-2] + read["test"][:2],
    }


def change(folder, name, **changes):
    """Changes fields of a JSON file."""
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(content | changes))


def as_array_record(folder):
    """Writes the records of the files to ArrayRecord files in their place."""
    writers = pytest.importorskip("array_record.python.array_record_module")
    for path in folder.glob("small-*.tfrecord-*"):
        writer = writers.ArrayRecordWriter(str(path).replace(".tfrecord-", ".array_record-"), "group_size:1")
        for record in TFRecordDataSource(str(path)):
            writer.write(record)
        writer.close()
        path.unlink()
    change(folder, "dataset_info.json", fileFormat="array_record")


@pytest.fixture
def tfrecord(tmp_path):
    """A copy of the fixture, since indices are written beside the files."""
    return Path(shutil.copytree(FIXTURE / "tfrecord", tmp_path / "small"))


@pytest.fixture(params=["tfrecord", "array_record"])
def folder(request, tfrecord):
    if request.param == "array_record":
        as_array_record(tfrecord)
    return tfrecord


def test_elements_are_those_that_the_library_reads(folder):
    for split, elements in expected(READ).items():
        source = TfdsDataSource(folder, split)
        assert_equal([source[i] for i in range(len(source))], elements)
        assert_equal(source.__getitems__(list(range(len(source)))), elements)
    assert_equal(TfdsDataSource(folder, "train")[-1], READ["train"][-1])


def test_elements_are_those_that_were_written(folder):
    source = TfdsDataSource(folder, "train")
    written = dict(make_tfds.examples("train"))
    assert sorted(element["id"] for element in source.__getitems__(range(len(source)))) == sorted(written)
    for i in range(len(source)):
        element = source[i]
        original = written[int(element["id"])]
        assert_equal(element["image"], original["image"])
        assert_equal(element["number_image"], original["number_image"])
        assert element["text"].decode() == original["text"]
        assert source.class_names["label"][element["label"]] == original["label"]
        assert_equal(element["packed"], original["packed"])
        assert [row.tolist() for row in element["ragged"]] == original["ragged"]


def test_supervised_elements_are_pairs(folder):
    source = TfdsDataSource(folder, "test", as_supervised=True)
    assert_equal([source[i] for i in range(len(source))], [(e["image"], e["label"]) for e in READ["test"]])
    batches = MapDataset.source(source).map(lambda pair: pair[1]).batch(5)
    assert batches[0].dtype == np.int64


def test_images_stay_bytes_when_they_are_not_decoded(folder):
    encoded, decoded = TfdsDataSource(folder, "test", decode=False), TfdsDataSource(folder, "test")
    assert encoded[0]["image"].startswith(b"\x89PNG")
    assert encoded[0]["photograph"].startswith(b"\xff\xd8")
    assert len(encoded[1]["video"]) == len(decoded[1]["video"])
    assert all(frame.startswith(b"\x89PNG") for i in range(5) for frame in encoded[i]["frames"])
    assert_equal(encoded[2]["matrix"], decoded[2]["matrix"])


def test_class_names_are_those_of_each_feature(folder):
    names = {"label": make_tfds.CLASSES, "nested/b/label": ["x", "y"], "objects/label": ["p", "q"]}
    assert TfdsDataSource(folder).class_names == names
    assert TfdsDataSource(folder, as_supervised=True).class_names == names
    (folder / "label.labels.txt").unlink()
    assert list(TfdsDataSource(folder).class_names) == ["nested/b/label", "objects/label"]


def test_the_spec_says_shapes_and_dtypes(folder):
    assert TfdsDataSource(folder).element_spec is None  # some features are ragged
    source = TfdsDataSource(folder, as_supervised=True)
    image, label = MapDataset.source(source).to_iter_dataset().element_spec
    assert (image.shape, image.dtype) == ((None, None, 3), np.uint8)
    assert (label.shape, label.dtype) == ((), np.int64)


def test_it_travels_as_paths_and_is_told_by_its_repr(folder):
    source = TfdsDataSource(folder, "train[:50%]", as_supervised=True)
    assert repr(source) == "TfdsDataSource('small/1.0.0', split='train[:50%]', as_supervised=True, length=6)"
    other = pickle.loads(pickle.dumps(source))
    assert_equal(other[2], source[2])
    assert repr(other) == repr(source)
    source.close()
    assert_equal(other[2], source[2])


# -------------------------------------------------------------------------------------------------- splits


@pytest.mark.parametrize(
    ("split", "parts"),
    [
        ("train[:0]", []),
        ("train[5:3]", []),
        ("train[2:9]", [("train", 2, 9)]),
        ("train[-3:]", [("train", 8, 11)]),
        ("train[:-1_0]", [("train", 0, 1)]),
        ("train[:33%]", [("train", 0, 4)]),
        ("train[33.3%:-10%]", [("train", 4, 10)]),
        ("train[:50%]+train[50%:]", [("train", 0, 6), ("train", 6, 11)]),
        ("train[1shard:]", [("train", 4, 11)]),
        ("train[-1shard:]+test[1shard]", [("train", 7, 11), ("test", 2, 3)]),
        ("test + train[:2]+train[:2]", [("test", 0, 5), ("train", 0, 2), ("train", 0, 2)]),
        ("all", [("train", 0, 11), ("test", 0, 5)]),
    ],
)
def test_splits_are_sliced_and_added(folder, split, parts):
    source = TfdsDataSource(folder, split, as_supervised=True, decode=False)
    whole = {name: TfdsDataSource(folder, name, as_supervised=True, decode=False) for name in ("train", "test")}
    indices = [(name, i) for name, start, stop in parts for i in range(start, stop)]
    assert len(source) == len(indices)
    for element, (name, i) in zip(source.__getitems__(range(len(source))), indices, strict=True):
        assert_equal(element, whole[name][i])
    with pytest.raises(IndexError, match=f"out of range for {len(indices)} examples"):
        source[len(indices)]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("nope", "small/1.0.0 has no split 'nope'; there are train, test, and `all`"),
        ("trian[:2]", r"Did you mean 'train\[:2\]'\?"),
        ("[:2]", r"'\[:2\]' does not name a split; small/1.0.0 has train, test. .*`split='train\[:2\]'`"),
        ("train[3]", "is not a split"),
        ("train[::2]", "is not a split"),
        ("train[10:50%]", "both ends of a slice must have the same unit"),
        ("train[:1.5]", "is not a split"),
        ("train+", "is not a split"),
        ("", "is not a split"),
        (None, "None is not a split"),
        ("all[:2]", r"'all\[:2\]' slices `all`, which can only be taken whole. .*'train\[:2\]\+test\[:2\]'"),
        ("train[:12]", "reaches 12, but there are only 11 records"),
        ("train[-12:]", "reaches -12, but there are only 11 records"),
        ("train[:101%]", "a percentage must be at most 100"),
        ("train[3shard]", "reaches shard 4, but there are 3"),
    ],
)
def test_what_is_wrong_with_a_split_is_said(tfrecord, split, message):
    with pytest.raises(PipelineError, match=message):
        TfdsDataSource(tfrecord, split)


# --------------------------------------------------------------------------------------------------- damage


def test_a_folder_of_another_kind_is_named_with_those_below_it(tfrecord):
    with pytest.raises(FileNotFoundError, match=r"has no `dataset_info.json`.*have one: small\."):
        TfdsDataSource(tfrecord.parent)
    with pytest.raises(FileNotFoundError, match="have one: none"):
        TfdsDataSource(tfrecord / "nowhere")


def test_missing_files_are_all_named_before_the_first_record(folder):
    for path in [*folder.glob("small-train.*-00000-of-00003"), *folder.glob("small-train.*-00002-of-00003")]:
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"2 of 3 .*00000-of-00003, .*00002-of-00003"):
        TfdsDataSource(folder, "train")
    assert len(TfdsDataSource(folder, "train[1shard]+test")) == 8


def test_files_that_are_not_those_described_are_named(tfrecord):
    shutil.copy(tfrecord / "small-train.tfrecord-00000-of-00003", tfrecord / "small-train.tfrecord-00001-of-00003")
    with pytest.raises(DataError, match=r"00001-of-00003 has 4 records, but `dataset_info.json` says 3"):
        TfdsDataSource(tfrecord, "train")


def rewrite(folder, change_record):
    """Changes the second record of the last file of the split `train`, with checksums that fit."""
    path = folder / "small-train.tfrecord-00002-of-00003"
    records = list(TFRecordDataSource(str(path)))
    records[1] = change_record(records[1])
    write(path, records)


@pytest.mark.parametrize(
    ("change_record", "message"),
    [
        (lambda record: record[: len(record) // 2], r"ends|early|Example"),
        (
            lambda record: record.replace(b"IHDR", b"XXXX"),
            "feature '(image|depth|number_image|frames|video)' does not decode",
        ),
        (lambda record: record.replace(b"\x05label", b"\x05lebal"), "'label'"),
        (lambda record: b"", "feature"),
    ],
)
@pytest.mark.parametrize("format_of_files", ["tfrecord", "array_record"])
def test_a_damaged_record_is_named_and_what_came_before_it_comes(tfrecord, change_record, message, format_of_files):
    rewrite(tfrecord, change_record)
    if format_of_files == "array_record":
        as_array_record(tfrecord)
    source = TfdsDataSource(tfrecord, "train")
    with pytest.raises(DataError, match=rf"{format_of_files}-00002-of-00003, record 1: .*({message})"):
        source.__getitems__(list(range(11)))
    stream = iter(MapDataset.source(source).map(lambda e: e["id"]).to_iter_dataset())
    assert [next(stream) for _ in range(8)] == [element["id"] for element in READ["train"][:8]]
    with pytest.raises(DataError, match="record 1"):
        next(stream)
    assert_equal(source[9], READ["train"][9])


def test_a_value_of_another_shape_than_described_is_named(tfrecord):
    described = json.loads((tfrecord / "features.json").read_text())
    matrix = described["featuresDict"]["features"]["matrix"]["tensor"]
    for sizes, message in (
        (["2", "2"], "matrix"),
        (["-1", "4"], r"'matrix' has 6 values, but its shape is \[None, 4\]"),
    ):
        matrix["shape"]["dimensions"] = sizes
        (tfrecord / "features.json").write_text(json.dumps(described))
        with pytest.raises(DataError, match=message):
            TfdsDataSource(tfrecord)[0]


def test_features_and_formats_that_are_not_read_are_named(tfrecord):
    described = json.loads((tfrecord / "features.json").read_text())
    features = described["featuresDict"]["features"]
    features["graph"] = {"pythonClassName": "my.Graph", "custom": {}}
    (tfrecord / "features.json").write_text(json.dumps(described))
    with pytest.raises(PipelineError, match=r"'graph' is a my.Graph \(custom\), which is not supported"):
        TfdsDataSource(tfrecord)
    features["graph"] = {"tensor": {"dtype": "float7", "shape": {}}}
    (tfrecord / "features.json").write_text(json.dumps(described))
    with pytest.raises(PipelineError, match="dtype 'float7'"):
        TfdsDataSource(tfrecord)
    del features["graph"]
    (tfrecord / "features.json").write_text(json.dumps(described))
    change(tfrecord, "dataset_info.json", supervisedKeys=None)
    with pytest.raises(PipelineError, match="does not say which features are input and target"):
        TfdsDataSource(tfrecord, as_supervised=True)
    change(tfrecord, "dataset_info.json", fileFormat="riegeli")
    with pytest.raises(PipelineError, match="format 'riegeli'"):
        TfdsDataSource(tfrecord)
    (tfrecord / "dataset_info.json").write_text("{")
    with pytest.raises(DataError, match=r"dataset_info.json is not JSON"):
        TfdsDataSource(tfrecord)


def test_a_split_without_examples_is_empty(tfrecord):
    info = json.loads((tfrecord / "dataset_info.json").read_text())
    del info["splits"][1]["shardLengths"]
    (tfrecord / "dataset_info.json").write_text(json.dumps(info))
    assert len(TfdsDataSource(tfrecord, "test")) == 0
    assert len(TfdsDataSource(tfrecord, "test+train")) == 11


def test_folders_behind_addresses_are_read(tfrecord, tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    fsspec.filesystem("memory").put(f"{tfrecord}/", "/headrace-tfds/small", recursive=True)
    source = TfdsDataSource("memory://headrace-tfds/small", "test")
    assert_equal(source.__getitems__([4, 0]), [READ["test"][4], READ["test"][0]])
    assert source.class_names["label"] == make_tfds.CLASSES


# ------------------------------------------------------------------------------------------ the library itself

AS_A_SOURCE = """
import os
from tests.sources.fixtures import make_tfds
make_tfds.main(target)
folder = target + "/array_record"

import tensorflow_datasets as tfds
from tensorflow_datasets.core import naming, splits
from headrace import MapDataset
from headrace.testing import assert_block_law, assert_equal, assert_resumable
from headrace.sources.tfds import TfdsDataSource

def chosen(element):
    return {key: element[key] for key in ("photograph", "label", "matrix")}

source = tfds.builder_from_directory(folder).as_data_source("train")
ds = MapDataset.source(source).shuffle(seed=1).map(chosen)
assert_block_law(ds)
assert_resumable(ds.to_iter_dataset())
ours = MapDataset.source(TfdsDataSource(folder)).shuffle(seed=1).map(chosen)
batches = list(zip(ds.batch(4), ours.batch(4), strict=True))
assert len(batches) == 3
for theirs, batch in batches:
    assert_equal(theirs, batch)

def shards(spec):
    try:
        return [(i.filename, i.skip, i.skip + i.take) for i in described[spec].file_instructions]
    except (ValueError, NotImplementedError):
        return None

described = splits.SplitDict([
    splits.SplitInfo(name=name, shard_lengths=sizes, num_bytes=0, filename_template=naming.ShardedFileTemplate(
        dataset_name="b", data_dir="/x", split=name, filetype_suffix="tfrecord"))
    for name, sizes in lengths.items()
])

for place in ("few/1.9.0", "few/1.10.0", "more/a/1.0.0", "more/b/1.0.0"):
    os.makedirs(f"{target}/named/{os.path.dirname(place)}", exist_ok=True)
    os.symlink(folder, f"{target}/named/{place}")
os.makedirs(f"{target}/named/more/.config")
with open(f"{target}/named/more/.config/metadata.json", "w") as file:
    file.write('{"default_config_name": "b"}')
from tensorflow_datasets.core import read_only_builder
from headrace.sources.tfds import folder_by_name
for name in ("few", "few:1.9.0", "few:1.*.*", "more", "more/a", "more/b:1.0.0", "more:1.0.0"):
    theirs = read_only_builder._find_builder_dir(name, data_dir=f"{target}/named")
    assert str(theirs) == folder_by_name(name, f"{target}/named"), name
found = [shards(spec) for spec in specs]
"""


def some_slices(lengths, count):
    """Slices and sums of splits that make sense: in every unit, with ends in order."""
    choose, specs = random.Random(0), []
    while len(specs) < count:
        parts = []
        for _ in range(choose.choice([1, 1, 2, 3])):
            name, unit = choose.choice(sorted(lengths)), choose.choice(["", "%", "shard"])
            most = {"": sum(lengths[name]), "%": 100, "shard": len(lengths[name])}[unit]
            start, stop = sorted(choose.sample(range(most + 1), 2))
            if choose.random() < 0.3 and unit != "%":
                start -= most
            parts.append(f"{name}[{start}{unit}:{stop}{unit}]" if choose.random() < 0.8 else f"{name}[{start}{unit}:]")
        specs.append("+".join(parts))
    return specs


@pytest.mark.xdist_group("tensorflow")
def test_folders_that_are_prepared_now_are_read_and_their_splits_mean_the_same(tmp_path, with_tensorflow):
    lengths = {"train": [3, 4, 0, 5, 1], "test": [7]}
    specs = [*some_slices(lengths, 300), "train", "train+test", "train[3:200]", "train[200:]", "train[-200:]", "nope"]
    specs += ["train[-50%:]", "train[:-20%]+test[-60%:-20%]", "train[-99.5%:]", "train[.5%:50.%]", "test[-7:-0]"]
    specs += ["all", "all[:3]", "all+test[1:]", "train[:1_0]", "train[0.5%:99.5%]", "train[1shard]"]
    theirs = with_tensorflow(AS_A_SOURCE, target=str(tmp_path), lengths=lengths, specs=specs)
    for file_format in ("array_record", "tfrecord"):
        for split, elements in expected(pickle.loads((tmp_path / "read.pickle").read_bytes())).items():
            source = TfdsDataSource(tmp_path / file_format, split)
            assert_equal(source.__getitems__(range(len(source))), elements)
    assert isinstance(TfdsDataSource(tmp_path / "array_record")._records, ArrayRecordDataSource)
    splits = {
        name: [Piece(f"/x/b-{name}.tfrecord-{i:05}-of-{len(sizes):05}", 0, n, n) for i, n in enumerate(sizes)]
        for name, sizes in lengths.items()
    }
    for spec, pieces in zip(specs, theirs, strict=True):
        if pieces is None:
            with pytest.raises(PipelineError):
                pieces_of(spec, splits)
        else:
            assert [(p.path, p.start, p.stop) for p in pieces_of(spec, splits)] == pieces, spec


# --------------------------------------------------------------------------------- descriptions that are wrong


def with_split(folder, **changes):
    """Changes fields of the first split."""
    path = folder / "dataset_info.json"
    content = json.loads(path.read_text())
    content["splits"][0] |= changes
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "template",
    [
        "../other/{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "a/../../other/{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "{OTHER}/{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "file://{OTHER}/{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
    ],
)
def test_files_are_read_and_written_in_the_folder_alone(tfrecord, tmp_path, template):
    other = Path(shutil.copytree(tfrecord, tmp_path / "other"))
    before = sorted(other.iterdir())
    with_split(tfrecord, filepathTemplate=template.replace("{OTHER}", str(other)))
    message = r"dataset_info.json: expected the name of a file in the same folder, got .* at `\$.splits\[0\].filepathTemplate`"
    with pytest.raises(DataError, match=message):
        TfdsDataSource(tfrecord)
    assert sorted(other.iterdir()) == before


def test_neither_the_names_of_a_data_set_nor_of_a_split_lead_elsewhere(tfrecord):
    with_split(tfrecord, name="/../../train")
    with pytest.raises(DataError, match="expected the name of a file in the same folder"):
        TfdsDataSource(tfrecord, "test")
    with_split(tfrecord, name="train")
    described = json.loads((tfrecord / "dataset_info.json").read_text())
    (tfrecord / "dataset_info.json").write_text(json.dumps(described | {"name": "../small"}))
    with pytest.raises(DataError, match="expected the name of a file in the same folder"):
        TfdsDataSource(tfrecord)


@pytest.mark.parametrize("template", ["{DATASET.__class__}", "{DATASET:>99999999999}", "{0}", "{", "{UNKNOWN}"])
def test_a_template_has_no_meaning_but_its_names(tfrecord, template):
    with_split(tfrecord, filepathTemplate=template)
    with pytest.raises(FileNotFoundError, match=f"{template[0]}"):
        TfdsDataSource(tfrecord)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"shardLengths": ["4", "-3", "4"]},
            r"a nonnegative whole number, got '-3' at `\$.splits\[0\].shardLengths\[1\]`",
        ),
        ({"shardLengths": [2**63]}, r"a nonnegative whole number, got 9223372036854775808 at"),
        ({"shardLengths": {"a": 1}}, r"expected a list, got \{'a': 1\} at `\$.splits\[0\].shardLengths`"),
        ({"name": 7}, r"expected a string, got 7 at `\$.splits\[0\].name`"),
        ({"name": None}, r"`name` is missing at `\$.splits\[0\]`"),
    ],
)
def test_what_is_wrong_with_a_description_is_said_with_its_place(tfrecord, changes, message):
    with_split(tfrecord, **changes)
    with pytest.raises(DataError, match=f"dataset_info.json: .*{message}"):
        TfdsDataSource(tfrecord)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"[]", b'{"name": "\\ud800"}', b""])
@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_a_description_that_is_no_json_object_is_named(tfrecord, name, content):
    (tfrecord / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        TfdsDataSource(tfrecord)
