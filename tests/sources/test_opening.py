"""`open` picks the source by suffix and content, for files, patterns, addresses and folders."""

import gzip
import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

from headrace import IterDataset, MapDataset
from headrace.errors import DataError, PipelineError
from headrace.sources.opening import FORMATS, open
from headrace.sources.writers import write_array_record, write_parquet, write_tfrecord
from headrace.testing import assert_equal

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
pytest.importorskip("array_record")

RECORDS = [b"%d" % i * 20 for i in range(10)]
ROWS = [{"x": i, "y": f"t{i}"} for i in range(10)]


def write_arrow(path):
    feather.write_feather(pa.Table.from_pylist(ROWS), path, compression="uncompressed")


def write_arrow_stream(path):
    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def write_numpy(path, save):
    with path.open("wb") as file:
        save(file)


def json_lines():
    return "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def idx():
    return b"\0\0\x08\2" + (10).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(range(30))


WRITTEN = {
    "array_record": lambda path: write_array_record(RECORDS, path),
    "tfrecord": lambda path: write_tfrecord(RECORDS, path),
    "parquet": lambda path: write_parquet(ROWS, path),
    "feather": write_arrow,
    "arrow": write_arrow_stream,
    "csv": lambda path: path.write_text("x,y\n" + "".join(f"{row['x']},{row['y']}\n" for row in ROWS)),
    "jsonl": lambda path: path.write_bytes(json_lines()),
    "txt": lambda path: path.write_text("".join(f"line {i}\n" for i in range(10))),
    "npy": lambda path: write_numpy(path, lambda file: np.save(file, np.arange(30).reshape(10, 3))),
    "npz": lambda path: write_numpy(path, lambda file: np.savez(file, x=np.arange(10), y=np.eye(10))),
    "idx": lambda path: path.write_bytes(idx()),
}
CLASSES = {
    "array_record": "ArrayRecordDataSource",
    "tfrecord": "TFRecordDataSource",
    "parquet": "ParquetDataSource",
    "feather": "ArrowDataSource",
    "arrow": "ArrowDataSource",
    "csv": "CsvDataSource",
    "jsonl": "JsonLinesDataSource",
    "txt": "TextLinesDataSource",
    "npy": "NpyDataSource",
    "npz": "NpzDataSource",
    "idx": "IdxDataSource",
}
TELLS_BY_ITS_BYTES = ["array_record", "tfrecord", "parquet", "feather", "arrow", "npy", "idx", "jsonl"]
ONE_AT_A_TIME = ["npy", "npz", "idx"]


def written(suffix, path):
    """Writes ten elements to a file."""
    WRITTEN[suffix](path)
    return path


def kind(source):
    return type(source).__name__


@pytest.mark.parametrize("suffix", WRITTEN)
def test_a_file_is_opened_by_its_suffix(tmp_path, suffix):
    source = open(written(suffix, tmp_path / f"ünï 1.{suffix}"))
    assert (kind(source), len(MapDataset.source(source))) == (CLASSES[suffix], 10)
    first = next(iter(MapDataset.source(source)))
    assert_equal(first, MapDataset.source(source)[0])


@pytest.mark.parametrize("suffix", TELLS_BY_ITS_BYTES)
@pytest.mark.parametrize("name", ["data", "data.bin", "data.parquet", "data.tfrecord-00000-of-00001"])
def test_a_file_is_opened_by_its_first_bytes(tmp_path, suffix, name):
    written(suffix, tmp_path / f"a.{suffix}").rename(tmp_path / name)
    if suffix == "jsonl" and ("parquet" in name or "tfrecord" in name):
        with pytest.raises(DataError, match="does not start as (Parquet|TFRecord) files do: its first bytes are b'{"):
            open(tmp_path / name)
        return
    assert kind(open(tmp_path / name)) == CLASSES[suffix]


@pytest.mark.parametrize("suffix", WRITTEN)
def test_a_format_can_be_named(tmp_path, suffix):
    path = written(suffix, tmp_path / f"a.{suffix}")
    format = next(form.name for form in FORMATS if form.source.endswith(f".{CLASSES[suffix]}"))
    assert kind(open(path.rename(tmp_path / "data"), format=format)) == CLASSES[suffix]


@pytest.mark.parametrize("suffix", [suffix for suffix in WRITTEN if suffix not in ONE_AT_A_TIME])
def test_several_files_patterns_and_folders_are_one_source(tmp_path, suffix):
    paths = [written(suffix, tmp_path / f"a-0000{i}-of-00002.{suffix}") for i in range(2)]
    (tmp_path / "_SUCCESS").write_bytes(b"")
    for given in (paths, tmp_path / f"a-*.{suffix}", tmp_path, str(tmp_path)):
        source = open(given)
        assert (kind(source), len(source)) == (CLASSES[suffix], 20)


@pytest.mark.parametrize("suffix", ONE_AT_A_TIME)
def test_formats_of_one_file_say_so(tmp_path, suffix):
    paths = [written(suffix, tmp_path / f"{i}.{suffix}") for i in range(2)]
    with pytest.raises(PipelineError, match="files one at a time; got 2"):
        open(paths)


def test_bagz_is_opened_by_its_suffix_alone(tmp_path):
    bagz = pytest.importorskip("bagz")
    pytest.importorskip("headrace.sources.bagz")
    with bagz.Writer(str(tmp_path / "a.bagz")) as writer:
        for _ in range(10):
            writer.write(b"PAR1")
    assert (kind(open(tmp_path / "a.bagz")), len(open(tmp_path / "a.bagz"))) == ("BagzDataSource", 10)


def test_a_zarr_group_is_a_folder(tmp_path):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    group.create_array("x", data=np.arange(10))
    assert (kind(open(tmp_path / "a.zarr")), len(open(tmp_path / "a.zarr"))) == ("ZarrDataSource", 10)


def test_an_hdf5_file_is_opened_by_its_first_bytes(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.data", "w") as file:
        file["x"] = np.arange(10)
    assert (kind(open(tmp_path / "a.data")), len(open(tmp_path / "a.data"))) == ("Hdf5DataSource", 10)


# -------------------------------------------------------------------------------------------- compressed


def test_compressed_files_are_streams(tmp_path):
    written("tfrecord", tmp_path / "plain.tfrecord")
    tfrecords = (tmp_path / "plain.tfrecord").read_bytes()
    for name, content in (
        ("a.tfrecord.gz", gzip.compress(tfrecords)),
        ("a.tfrecord", gzip.compress(tfrecords)),
        ("b.tfrecord", zlib.compress(tfrecords)),
        ("unknown.gz", gzip.compress(tfrecords)),
    ):
        (tmp_path / name).write_bytes(content)
        ds = open(tmp_path / name)
        assert kind(ds) == "TFRecordIterDataset"
        assert list(ds) == RECORDS
    ds = open([tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"])
    assert isinstance(ds, IterDataset)
    assert list(ds) == RECORDS * 2


def test_a_record_whose_length_looks_like_gzip_is_not_taken_for_it(tmp_path):
    write_tfrecord([bytes(0x088B1F)], tmp_path / "a.tfrecord")
    assert (tmp_path / "a.tfrecord").read_bytes().startswith(b"\x1f\x8b\x08")
    assert (kind(open(tmp_path / "a.tfrecord")), len(open(tmp_path / "a.tfrecord"))) == ("TFRecordDataSource", 1)


def test_compressed_json_lines_are_streams(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(json_lines()))
    assert list(open(tmp_path / "a.jsonl.gz")) == ROWS
    zstandard = pytest.importorskip("zstandard")
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(json_lines()))
    assert list(open(tmp_path / "a.jsonl.zst")) == ROWS


def test_compressed_csv_is_a_source(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\n1\n2\n"))
    source = open(tmp_path / "a.csv.gz")
    assert (kind(source), [row["x"] for row in source]) == ("CsvDataSource", [1, 2])


def test_compressed_idx_is_a_source_and_other_compressed_files_say_so(tmp_path):
    (tmp_path / "train-images-idx2-ubyte.gz").write_bytes(gzip.compress(idx()))
    source = open(tmp_path / "train-images-idx2-ubyte.gz")
    assert (kind(source), source[1].tolist()) == ("IdxDataSource", [3, 4, 5])
    (tmp_path / "a.npy.gz").write_bytes(gzip.compress(b"\x93NUMPY"))
    with pytest.raises(
        DataError, match="a.npy.gz is compressed, but compressed NumPy files are not supported. Decompress it first"
    ):
        open(tmp_path / "a.npy.gz")


# ----------------------------------------------------------------------------------------------- folders


def test_a_folder_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("cat/1.png", "dog/2.png"):
        path = tmp_path / name
        path.parent.mkdir()
        image.new("RGB", (4, 4)).save(path)
    source = open(tmp_path)
    assert (kind(source), len(source), source.class_names) == ("ImageFolderDataSource", 2, ["cat", "dog"])
    assert len(open(tmp_path / "cat")) == 1


def test_a_folder_that_tfds_prepared(tmp_path):
    prepared = shutil.copytree(Path(__file__).parent / "fixtures" / "tfds" / "tfrecord", tmp_path / "small")
    assert kind(open(prepared, split="train")) == "TfdsDataSource"


def test_a_folder_that_hugging_face_saved(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(ROWS, split="train").cast_column("x", datasets.ClassLabel(num_classes=10))
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows.select(range(3))}).save_to_disk(tmp_path / "two")
    for given, length in (
        (open(tmp_path / "one"), 10),
        (open(tmp_path / "one", split="train"), 10),
        (open(tmp_path / "two"), 10),
        (open(tmp_path / "two", split="test"), 3),
    ):
        assert (kind(given), len(given), given[2]) == ("HuggingFaceDataSource", length, ROWS[2])
        assert list(given.class_names) == ["x"]
    assert kind(open(tmp_path / "one", format="Arrow")) == "ArrowDataSource"
    with pytest.raises(PipelineError, match="has no split 'nope'; there are train, test"):
        open(tmp_path / "two", split="nope")
    with pytest.raises(PipelineError, match="has no split 'test'; there is only train"):
        open(tmp_path / "one", split="test")


def test_a_folder_of_several_formats_must_be_told(tmp_path):
    with pytest.raises(DataError, match="is a folder with no data files. Known formats are"):
        open(tmp_path)
    written("parquet", tmp_path / "a.parquet")
    written("tfrecord", tmp_path / "a.tfrecord")
    with pytest.raises(
        DataError, match="1 of TFRecord, such as .*; 1 of Parquet, such as .*|1 of Parquet, such as .*; 1 of TFRecord"
    ):
        open(tmp_path)
    assert kind(open(tmp_path, format="parquet")) == "ParquetDataSource"
    assert kind(open(tmp_path, format="TFRecord")) == "TFRecordDataSource"


# ---------------------------------------------------------------------------------------- options, errors


def test_options_go_to_the_source(tmp_path):
    assert open(written("parquet", tmp_path / "a.parquet"), columns=["x"])[1] == {"x": 1}


def test_some_records_of_a_file(tmp_path):
    path = written("array_record", tmp_path / "a.array_record")
    assert list(open(f"{path}[2:5]")) == RECORDS[2:5]
    assert list(open([f"{path}[2:5]", str(path)])) == RECORDS[2:5] + RECORDS


@pytest.mark.parametrize(
    ("chosen", "expected"), [("[2:]", RECORDS[2:]), ("[:2]", RECORDS[:2]), ("[1:3]", RECORDS[1:3])]
)
@pytest.mark.parametrize("kind_of_path", [str, Path])
def test_ranges_may_leave_out_an_end(tmp_path, chosen, expected, kind_of_path):
    (path,) = write_array_record(RECORDS, tmp_path / "x.array_record")
    assert list(open(kind_of_path(path + chosen))) == expected
    assert list(open([kind_of_path(path + chosen), path])) == expected + RECORDS


def test_the_shards_of_a_bagz_name_are_opened(tmp_path):
    bagz = pytest.importorskip("bagz")
    for i in range(3):
        with bagz.Writer(str(tmp_path / f"n-{i:05d}-of-00003.bagz")) as writer:
            writer.write(b"%d" % i)
    for name in ("n@3.bagz", "n@*.bagz", "n@3.bagz[0:1]"):
        assert list(open(tmp_path / name)) == [b"0", b"1", b"2"]
    with pytest.raises(FileNotFoundError, match=r"1 of 4 paths of .*/n-00000-of-00004\.bagz|4 of 4 paths of"):
        open(tmp_path / "n@4.bagz")


def test_a_zipped_zarr_store_is_opened_by_its_suffix(tmp_path):
    zarr = pytest.importorskip("zarr")
    path = str(tmp_path / "z.zarr.zip")
    with zarr.storage.ZipStore(path, mode="w") as store:
        zarr.create_group(store).create_array("x", data=np.arange(5))
    source = open(path)
    assert kind(source) == "ZarrDataSource"
    assert source[3]["x"] == 3


def test_addresses(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    fsspec = pytest.importorskip("fsspec")
    fs = fsspec.filesystem("memory")
    try:
        for suffix in ("jsonl", "csv", "tfrecord", "parquet"):
            path = written(suffix, tmp_path / f"a.{suffix}")
            fs.pipe(f"/headrace-open/{suffix}/a.{suffix}", path.read_bytes())
            for given in (f"memory://headrace-open/{suffix}/*", f"memory://headrace-open/{suffix}"):
                source = open(given, storage_options={"skip_instance_cache": False})
                assert (kind(source), len(source)) == (CLASSES[suffix], 10)
                assert_equal(list(source)[3], list(open(path))[3])
    finally:
        fs.rm("/headrace-open", recursive=True)


def test_empty_files_are_opened_by_their_suffix(tmp_path):
    for suffix in ("tfrecord", "jsonl"):
        (tmp_path / f"a.{suffix}").write_bytes(b"")
        assert len(open(tmp_path / f"a.{suffix}")) == 0


def test_unknown_files_are_an_error_that_lists_what_is_known(tmp_path):
    (tmp_path / "a.xyz").write_bytes(b"\1\2\3")
    with pytest.raises(DataError) as caught:
        open(tmp_path / "a.xyz")
    message = str(caught.value)
    assert "a.xyz has no known format: it starts with b'\\x01\\x02\\x03'" in message
    for form in FORMATS:
        assert f"{form.name} ({' '.join(form.suffixes)})" in message
    with pytest.raises(PipelineError, match="There is no format 'xyz'; the formats are ArrayRecord, TFRecord"):
        open(tmp_path / "a.xyz", format="xyz")


def test_damaged_files_are_an_error(tmp_path):
    path = written("parquet", tmp_path / "a.parquet")
    path.write_bytes(b"XXXX" + path.read_bytes()[4:])
    with pytest.raises(DataError, match="a.parquet does not start as Parquet files do: its first bytes are b'XXXX"):
        open(path)


def test_missing_files_are_all_named(tmp_path):
    path = written("csv", tmp_path / "a.csv")
    with pytest.raises(FileNotFoundError, match="2 of 3 paths of Data files match no file: .*b.csv, .*c.csv"):
        open([path, tmp_path / "b.csv", tmp_path / "c.csv"])


def test_a_folder_among_files_says_so(tmp_path):
    (tmp_path / "sub").mkdir()
    with pytest.raises(PipelineError, match="sub is a folder; open folders one at a time"):
        open([tmp_path / "sub"])


# ------------------------------------------------------------------------------- Hugging Face's descriptions


@pytest.mark.parametrize("name", ["../outside/data.arrow", "/outside/data.arrow", "a/../../data.arrow"])
def test_a_saved_dataset_leads_to_files_in_its_folder_alone(tmp_path, name):
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "saved"
    datasets.Dataset.from_dict({"x": [1, 2]}).save_to_disk(str(folder))
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"][0]["filename"] = name
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=r"state.json: expected the name of a file in the same folder, got .*filename`"):
        open(folder)


def test_a_split_of_a_saved_dataset_is_in_its_folder(tmp_path):
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_dict({"x": [1, 2]})
    one.save_to_disk(str(tmp_path / "other"))
    datasets.DatasetDict({"train": one}).save_to_disk(str(tmp_path / "saved"))
    assert open(tmp_path / "saved")[1] == {"x": 2}
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["../other"]}')
    with pytest.raises(DataError, match="dataset_dict.json: expected the name of a file in the same folder"):
        open(tmp_path / "saved")
