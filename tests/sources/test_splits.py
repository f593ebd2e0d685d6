"""Splits by name, their slices and sums, against what `datasets` reads; TFDS itself is compared in `test_tfds.py`."""

import gzip
import itertools
import json
import pickle
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import headrace
from headrace import MapDataset
from headrace.errors import DataError, PipelineError, StateError
from headrace.sources import (
    ExampleDataSource,
    Feature,
    HuggingFaceDataSource,
    HuggingFaceIterDataset,
    TfdsDataSource,
    write_parquet,
    write_tfrecord,
)
from headrace.storage.splits import parse
from headrace.testing import assert_block_law, assert_equal, assert_resumable

datasets = pytest.importorskip("datasets")
TFDS = Path(__file__).parent / "fixtures" / "tfds" / "tfrecord"
SPLIT = "train[:33%]+test[10:20]+train[-5:]"  # of 60 and 25 rows
WANTED = [*range(20), *range(1010, 1020), *range(55, 60)]


# ---------------------------------------------------------------------------------------------- what a slice means


def some_slices(count):
    """Slices of a split by percents and by numbers, in any order, past the ends as well."""
    choose = random.Random(1)
    for _ in range(count):
        unit, most = choose.choice([("", 60), ("%", 100)])
        ends = [choose.choice(["", f"{choose.randint(-most, most)}{unit}"]) for _ in range(2)]
        yield f"train[{':'.join(ends)}]"


def rounds_to_none(text, length):
    """Whether a percent from the end is less than a record: `datasets` and TFDS then count from the start instead."""
    percents = [float(end.rstrip("%")) for end in text.strip("train[]").split(":") if end.endswith("%")]
    return any(percent < 0 and not round(percent * length / 100) for percent in percents) and length > 0


def test_slices_are_those_of_hugging_face():
    compared = 0
    for text, length in itertools.product(some_slices(300), (1, 3, 25, 50, 99, 1000)):
        (theirs,) = datasets.ReadInstruction.from_spec(text).to_absolute({"train": length})
        if rounds_to_none(text, length):
            with pytest.raises(PipelineError, match="rounds to 0"):
                parse(text)[0].bounds(length, clips=True)
        else:
            ours = parse(text)[0].bounds(length, clips=True)
            assert ours == (theirs.from_, max(theirs.from_, theirs.to)), (text, length)
            compared += 1
    assert compared > 1500


def percents():
    """Places to cut at, as text, in the order of the places; from the end, if they are negative."""
    of_start = st.lists(st.decimals(0, 100, places=1).map(str), max_size=5).map(lambda found: sorted(found, key=float))
    return of_start.flatmap(lambda cuts: st.sampled_from([cuts, [f"-{float(100 - float(cut)):g}" for cut in cuts]]))


@given(percents(), st.integers(0, 130))
def test_parts_cut_at_the_same_percents_have_every_record_once(cuts, length):
    ends = ["", *(f"{cut}%" for cut in cuts if cut != "-0"), ""]
    texts = [f"[{start}:{stop}]" for start, stop in itertools.pairwise(ends)]
    assume(not any(rounds_to_none(text, length) for text in texts))
    ds = MapDataset.range(length)
    parts = [ds.split(text) for text in texts]
    assert [x for part in parts for x in part] == list(range(length))
    assert list(ds.split("+".join(texts))) == list(range(length))
    later = [[part[len(part) + i] for i in range(len(part))] for part in parts]  # the next epoch
    assert later == [list(part) for part in parts]


# -------------------------------------------------------------------------------------------------- of a dataset


class Columns:
    """A source that counts its reads; record 17 is damaged."""

    def __init__(self, length):
        self.length, self.calls = length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        raise NotImplementedError

    def __getcolumns__(self, indices):
        self.calls.append(indices.tolist())
        if 17 in indices:
            raise DataError("damaged")
        return {"x": indices * 1.0}

    @property
    def element_spec(self):
        return {"x": headrace.experimental.ShapeDtypeStruct((), np.float64)}


def test_a_part_of_a_dataset_is_read_by_columns():
    source = Columns(100)
    ds = MapDataset.source(source)
    assert_equal(ds.split("[:10%]").batch(5)[1], {"x": np.arange(5, 10.0)})
    assert source.calls == [[5, 6, 7, 8, 9]]
    source.calls.clear()
    assert_equal(ds.split("[:10]+[-10%:]").batch(8)[1], {"x": np.array([8, 9, 90, 91, 92, 93, 94, 95.0])})
    assert source.calls == [[8, 9, 90, 91, 92, 93, 94, 95]]
    for split in ("[80%:]", "[:3]+[80%:]"):
        assert ds.split(split).element_spec == ds.element_spec
        assert_block_law(ds.split(split).shuffle(seed=1))
        assert_resumable(ds.split(split).shuffle(seed=1).repeat(2).to_iter_dataset())


def test_an_error_names_the_record_by_its_index_in_the_source():
    ds = MapDataset.source(Columns(100))
    for split in ("[15:30]", "[:3]+[15:30]"):
        with pytest.raises(DataError) as caught:
            list(ds.split(split).to_iter_dataset())
        assert any("17" in note for note in caught.value.__notes__)


def test_a_state_is_of_its_part():
    ds = MapDataset.range(100)
    iterator = iter(ds.split("[:80%]").shuffle(seed=1).to_iter_dataset())
    next(iterator)
    state = iterator.get_state()
    same = iter(ds.split("[0:80]").shuffle(seed=1).to_iter_dataset())
    same.set_state(state)
    assert list(same) == list(iterator)
    with pytest.raises(StateError, match="slice start 0 → 20"):
        iter(ds.split("[20%:]").shuffle(seed=1).to_iter_dataset()).set_state(state)
    state = iter(ds.split("[:40]+[60:]").to_iter_dataset()).get_state()
    with pytest.raises(StateError, match=r"split starts\[1\] 60 → 50; split stops\[1\] 100 → 90"):
        iter(ds.split("[:40]+[50:90]").to_iter_dataset()).set_state(state)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "train[:80%]",
            r"names the split 'train'\. Write `ds\.split\('\[:80%\]'\)`, or .*open\(path, split='train\[:80%",
        ),
        ("80%", r"write a slice in brackets, with a colon, as in `\[:80%\]`"),
        (":80%", r"write a slice in brackets, as in `\[:80%\]`"),
        ("[::2]", "cannot have a step"),
        ("[3]", "a slice needs a colon"),
        ("[:5]+[6:x]", r"'\[6:x\]', in '\[:5\]\+\[6:x\]' is not a split"),
        ("[10:50%]", "same unit"),
        ("[:1.5]", "only percentages can have fractions"),
        ("[:101%]", "must be at most 100"),
        ("[:11]", r"'\[:11\]' reaches 11, but there are only 10 records. Omit that end"),
        ("[-4%:]", "4% of 10 records rounds to 0"),
        ("[1shard:]", "only TFDS folders can be sliced by shards"),
        ("", "'' is not a split. Write it as in `train`"),
        (None, "None is not a split"),
    ],
)
def test_what_is_wrong_with_a_part_of_a_dataset_is_said(text, message):
    with pytest.raises(PipelineError, match=message):
        MapDataset.range(10).split(text)


def test_a_part_has_the_same_elements_in_every_epoch():
    ds = MapDataset.range(10)
    for before in (
        ds.shuffle(seed=1),
        ds.window_shuffle(3, seed=1).map(str),
        MapDataset.concatenate([ds, ds.shuffle(1)]),
    ):
        with pytest.raises(
            PipelineError, match=r"other elements in each epoch.*`ds\.split\('\[:80%\]'\)\.shuffle\(seed\)`"
        ):
            before.split("[:80%]")
    with pytest.raises(PipelineError, match="a part of one epoch"):
        ds.repeat(2).split("[:80%]")
    fixed = ds.shuffle(seed=1).repeat(1, reseed_each_epoch=False)
    part = fixed.split("[:80%]")
    assert sorted([*part, *fixed.split("[80%:]")]) == list(range(10))
    assert [part[8 + i] for i in range(8)] == list(part) != sorted(part)


def test_a_stream_says_where_to_split():
    with pytest.raises(AttributeError, match=r"'split'.*before `to_iter_dataset\(\)`"):
        MapDataset.range(3).to_iter_dataset().split("[:1]")


# ---------------------------------------------------------------------------------------------------- Hugging Face


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder that `save_to_disk` wrote, with rows 0 to 59 in `train` and 1000 to 1024 in `test`."""
    folder = tmp_path_factory.mktemp("hugging face") / "saved"
    splits = {"train": range(60), "test": range(1000, 1025)}
    rows = {name: {"x": list(ids), "text": [f"text {i:04}" for i in ids]} for name, ids in splits.items()}
    parts = {name: datasets.Dataset.from_dict(columns) for name, columns in rows.items()}
    datasets.DatasetDict(parts).save_to_disk(folder)
    return folder


@pytest.fixture(scope="module")
def tables(saved):
    """The same rows in a file for each split, in two shards for `train`."""
    folder = saved.parent / "tables"
    folder.mkdir()
    for name, num_shards in (("train", 2), ("test", 1)):
        write_parquet(headrace.open(saved, split=name), folder / f"{name}.parquet", num_shards=num_shards)
    (folder / "README.md").write_text("Two splits.")
    return folder


def ids(source):
    return [row["x"] for row in source.__getitems__(range(len(source)))]


def test_splits_are_those_that_hugging_face_reads(saved, tables, tmp_path):
    files = {"train": str(tables / "train-*.parquet"), "test": str(tables / "test.parquet")}
    splits = [
        SPLIT,
        "train",
        "test[:7%]",
        "train[95%:]+test",
        "train[:1000]",
        "test[-2_0:-5]",
        "train[10:20]+train[15:30]",
    ]
    for split in splits:
        theirs = datasets.load_dataset("parquet", data_files=files, split=split, cache_dir=str(tmp_path))
        assert ids(headrace.open(saved, split=split)) == list(theirs["x"]), split
    for split in (datasets.Split.TEST, datasets.ReadInstruction("train", to=33, unit="%")):
        theirs = datasets.load_dataset("parquet", data_files=files, split=split, cache_dir=str(tmp_path))
        assert ids(headrace.open(saved, split=split)) == list(theirs["x"])


def test_parts_of_a_saved_dataset(saved):
    source = headrace.open(saved, split=SPLIT)
    assert isinstance(source, HuggingFaceDataSource)
    assert ids(source) == WANTED
    assert_block_law(MapDataset.source(source).shuffle(seed=1))
    numbers = headrace.open(saved, split="all")._dataset.select_columns("x")
    columns = HuggingFaceDataSource(numbers, split="[10%:-10%]")
    assert_equal(columns.__getcolumns__(np.array([0, 3])), {"x": np.array([8, 11])})
    assert columns.element_spec == HuggingFaceDataSource(numbers).element_spec
    assert len(headrace.open(saved, split="all")) == 85
    assert repr(headrace.open(saved, split=SPLIT)) == repr(source)
    assert repr(headrace.open(saved, split="train[:5]")) != repr(headrace.open(saved, split="train[5:10]"))


def test_one_dataset_may_be_sliced_without_a_name(saved, tmp_path):
    one = datasets.load_from_disk(saved / "train")
    assert ids(HuggingFaceDataSource(one, split="[:5%]+[-1:]")) == [0, 1, 2, 59]
    part = datasets.Dataset.from_dict({"x": [1, 2]}, split="train[:2]")
    part.save_to_disk(tmp_path / "part")
    for split in ("train[:2]", "[:2]", "all", None):
        assert ids(headrace.open(tmp_path / "part", split=split)) == [1, 2]


def test_a_damaged_row_is_named_by_its_number_in_its_file(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "saved")
    (file,) = (folder / "test").glob("*.arrow")
    file.write_bytes(file.read_bytes().replace(b"text 1013", b"text 10\xff3"))
    source = headrace.open(folder, split="train[:7]+test[10:20]")
    assert source[6]["text"] == "text 0006"
    with pytest.raises(DataError, match=r"test.*\.arrow, row 13, column 'text'"):
        source[10]


def test_wrong_splits_of_hugging_face_are_said(saved):
    with pytest.raises(
        PipelineError, match=r"saved has no split 'trian'; there are train, test, .*Did you mean 'train\[:5\]'\?"
    ):
        headrace.open(saved, split="trian[:5]")
    with pytest.raises(
        PipelineError, match=r"does not name a split; .*saved has train, test\. .*`split='train\[:5\]'`"
    ):
        headrace.open(saved, split="[:5]")
    streams = datasets.IterableDatasetDict({"train": datasets.load_from_disk(saved / "train").to_iterable_dataset()})
    with pytest.raises(
        PipelineError, match=r"lengths are unknown. Choose one split, as in `split='train'`, and .*`take`"
    ):
        HuggingFaceIterDataset(streams, split="train[:5]")
    assert len(list(HuggingFaceIterDataset(streams, split="train"))) == 60


# ----------------------------------------------------------------------------------------------------- other files


def test_names_are_those_of_files(tables):
    source = headrace.open(tables, split=SPLIT)
    assert ids(source) == WANTED
    assert_equal(source[-1], headrace.open(tables, split="train")[59])
    assert_block_law(MapDataset.source(source).shuffle(seed=1))
    assert pickle.loads(pickle.dumps(source)).__getitems__([20, 0])[0]["x"] == 1010
    assert ids(headrace.open(tables / "*.parquet", split="test[:2]+train[:1]")) == [1000, 1001, 0]
    assert ids(headrace.open(tables / "test.parquet", split="test[-1:]")) == [1024]
    train, rest = headrace.open(tables, split=["train[:80%]", "train[80%:]+test"])
    assert (len(train), len(rest)) == (48, 37)
    assert "split='train[:80%]'" in repr(train)


def test_a_part_of_files_has_what_its_source_has(tables):
    whole = headrace.open(tables, columns=["x"])
    source = headrace.open(tables, split="[8:20]+[-1:]", columns=["x"])
    order = ids(whole)
    assert ids(source) == [*order[8:20], order[-1]]
    assert source.element_spec == whole.element_spec
    assert_equal(source.__getcolumns__(np.array([12, 0])), {"x": np.array([order[-1], order[8]])})
    assert_equal(MapDataset.source(source).batch(13)[0]["x"], np.array([*order[8:20], order[-1]]))
    assert source.__where__(0) == whole.__where__(8)
    assert headrace.open(tables, split="train[35:36]").__where__(0) == (str(tables / "train-00001-of-00002.parquet"), 5)
    with pytest.raises(IndexError, match="out of range for 13 elements"):
        source[13]
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        source.nope  # noqa: B018


def test_folders_may_be_splits(tables, tmp_path):
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        for file in tables.glob(f"{name}*.parquet"):
            shutil.copy(file, tmp_path / name)
    assert ids(headrace.open(tmp_path, split=SPLIT)) == WANTED
    assert len(headrace.open(tmp_path, split="test")) == 25


def test_images_in_folders_of_splits(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("train/cat/1.png", "train/cat/2.png", "train/dog/3.png", "test/cat/4.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (4, 4)).save(tmp_path / name)
    source = headrace.open(tmp_path, split="train[1:]")
    assert (len(source), source.class_names) == (2, ["cat", "dog"])
    assert source.__where__(1)[0].endswith("3.png")
    with pytest.raises(PipelineError, match="folder of the kind images, which must be opened alone"):
        headrace.open(tmp_path, split="train+test")


def test_records_and_examples_in_parts(tmp_path):
    write_tfrecord([{"x": np.array([i])} for i in range(10)], tmp_path / "train.tfrecord")
    parsed = headrace.open(tmp_path, split="train[-30%:]", parse_examples=True)
    assert [row["x"].item() for row in parsed] == [7, 8, 9]
    records = headrace.open(tmp_path / "train.tfrecord", split="[-30%:]")
    examples = ExampleDataSource(records, {"x": Feature(np.int64, (1,))})
    assert_equal(MapDataset.source(examples).batch(3)[0], {"x": np.array([[7], [8], [9]])})


def test_arrays_and_lines_in_parts(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(20).reshape(10, 2))
    assert_equal(MapDataset.source(headrace.open(tmp_path / "x.npy", split="[:50%]")).batch(2)[2], np.array([[8, 9]]))
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"i": i}) + "\n" for i in range(10)))
    assert headrace.open(tmp_path / "x.jsonl", split="[-1:]+[:1]").__getitems__([0, 1]) == [{"i": 9}, {"i": 0}]


def test_wrong_splits_of_files_are_said(tables, tmp_path):
    with pytest.raises(
        PipelineError, match=r"tables has no split 'tset'; .*Did you mean 'test'\? Splits are named after files"
    ):
        headrace.open(tables, split="tset")
    with pytest.raises(PipelineError, match="there is only test. .*without a name, a slice covers all files"):
        headrace.open(tables / "test.parquet", split="train[:80%]")
    with pytest.raises(PipelineError, match="files are verified as a whole"):
        headrace.verify(tables, split="train[:80%]")
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}\n' * 3))
    assert len(list(headrace.open(tmp_path, split="train"))) == 3
    with pytest.raises(PipelineError, match=r"can only be read in order.*`take` and `skip`"):
        headrace.open(tmp_path, split="train[:1]")


# ------------------------------------------------------------------------------------------------- TFDS, by name


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Datasets where TFDS keeps them: two versions of one, and one with configs."""
    root = tmp_path_factory.mktemp("tfds")
    for place in ("small/1.0.0", "small/1.10.0", "small/1.9.0", "many/big/2.0.0", "many/tiny/1.0.0"):
        shutil.copytree(TFDS, root / place)
        info = json.loads((root / place / "dataset_info.json").read_text())
        (root / place / "dataset_info.json").write_text(json.dumps(info | {"version": place.rpartition("/")[2]}))
    (root / "many" / ".config").mkdir()
    (root / "many" / ".config" / "metadata.json").write_text('{"default_config_name": "tiny"}')
    return root


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("small", "1.10.0"),
        ("small:1.9.0", "1.9.0"),
        ("small:1.*.*", "1.10.0"),
        ("many", "1.0.0"),
        ("many/big", "2.0.0"),
        ("many/big:2.0.0", "2.0.0"),
    ],
)
def test_a_dataset_of_tfds_is_found_by_name(data_dir, monkeypatch, name, version):
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    source = TfdsDataSource(name, "train[:80%]", as_supervised=True)
    assert f"'small/{version}'" in repr(source)
    assert len(source) == 9
    for other in (
        TfdsDataSource(name, "train[:80%]", data_dir=data_dir, as_supervised=True),
        headrace.open(f"tfds:{name}", split="train[:80%]", as_supervised=True),
        headrace.open(f"tfds:{name}", data_dir=data_dir, split="train[:80%]", as_supervised=True),
    ):
        assert repr(other) == repr(source)
    assert_equal(other[8], source[8])


def test_tfds_by_name_has_all_that_a_path_has(data_dir, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    assert len(MapDataset.source("tfds:small")) == 11
    train, validation = headrace.open("tfds:small", split=["train[:80%]", "train[80%:]"], as_supervised=True)
    assert len(train) + len(validation) == 11
    assert len(train[0]) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "smal",
            "There is no dataset 'smal' in .*; there are many, small. Did you mean 'small'. Set `data_dir` or TFDS_DATA.*`tfds build`",
        ),
        ("small:3.0.0", "has no version 3.0.0; there are 1.0.0, 1.9.0, 1.10.0"),
        ("many/bgi", "many has no config 'bgi' in .*; there are big, tiny. Did you mean 'big'"),
    ],
)
def test_a_dataset_that_is_not_there_is_said(data_dir, name, message):
    with pytest.raises(FileNotFoundError, match=message):
        headrace.open(f"tfds:{name}", data_dir=data_dir)


def test_tfds_by_name_behind_an_address(data_dir, tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    fsspec.filesystem("memory").put(f"{data_dir}/", "/headrace-named", recursive=True)
    address = {"data_dir": "memory://headrace-named", "storage_options": {"skip_instance_cache": False}}
    source = headrace.open("tfds:small:1.9.0", split="test[-2:]", **address)
    assert_equal(source[1], TfdsDataSource("small", "test", data_dir=data_dir)[4])
    with pytest.raises(FileNotFoundError, match="there are many, small"):
        TfdsDataSource("nope", data_dir="memory://headrace-named")


def test_wrong_names_of_tfds_are_said(data_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    with pytest.raises(FileNotFoundError, match="'data/mnist' is neither a folder nor the name .* no dataset 'data'"):
        TfdsDataSource("data/mnist")
    shutil.copytree(data_dir / "many", tmp_path / "many", ignore=shutil.ignore_patterns(".config"))
    with pytest.raises(FileNotFoundError, match="no versions of a dataset. Is it one of its configs, as in 'many/big'"):
        TfdsDataSource("many", data_dir=tmp_path)
    with pytest.raises(PipelineError, match="'../small' is not the name of a TFDS dataset"):
        headrace.open("tfds:../small", data_dir=data_dir)
    with pytest.raises(PipelineError, match="`data_dir` applies only to TFDS datasets opened by name"):
        headrace.open(data_dir / "small", data_dir=data_dir)
    (tmp_path / "many" / ".config").mkdir()
    (tmp_path / "many" / ".config" / "metadata.json").write_text('{"default_config_name": "../../other"}')
    with pytest.raises(DataError, match="metadata.json"):
        TfdsDataSource("many", data_dir=tmp_path)
