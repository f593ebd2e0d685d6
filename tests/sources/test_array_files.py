"""Files of arrays, against the formats' own writers."""

import gzip
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace import MapDataset
from headrace.errors import DataError, PipelineError
from headrace.sources.array_files import (
    Hdf5DataSource,
    IdxDataSource,
    NpyDataSource,
    NpzDataSource,
    ZarrDataSource,
)
from headrace.testing import assert_block_law, assert_equal

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(256, size=(50, 4, 3), dtype=np.uint8)
LABELS = np.arange(50, dtype=np.int32)
IDX_CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array):
    """An array in MNIST's format."""
    sizes = np.array(array.shape, ">u4").tobytes()
    code = IDX_CODES[array.dtype.str[1:]]
    return bytes([0, 0, code, array.ndim]) + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_npy(folder):
    np.save(folder / "x.npy", IMAGES)
    np.save(folder / "y.npy", LABELS)
    return NpyDataSource({"x": folder / "x.npy", "y": folder / "y.npy"})


def write_npz(folder):
    np.savez_compressed(folder / "a.npz", x=IMAGES, y=LABELS)
    return NpzDataSource(folder / "a.npz")


def write_idx(folder):
    (folder / "x.gz").write_bytes(gzip.compress(idx_bytes(IMAGES)))
    (folder / "y").write_bytes(idx_bytes(LABELS))
    return IdxDataSource({"x": folder / "x.gz", "y": folder / "y"})


def write_hdf5(folder):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=IMAGES, chunks=(7, 4, 3), compression="gzip")
        file["y"] = LABELS
    return Hdf5DataSource(folder / "a.h5")


def write_zarr(folder):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(folder / "a.zarr"), mode="w")
    group.create_array("x", data=IMAGES, chunks=(7, 4, 3))
    group.create_array("y", data=LABELS, chunks=(20,))
    return ZarrDataSource(folder / "a.zarr")


WRITERS = [write_npy, write_npz, write_idx, write_hdf5, write_zarr]


def test_reprs_are_short_and_tell_sources_apart(tmp_path):
    reprs = set()
    for write in WRITERS:
        source = write(tmp_path)
        assert repr(source) == repr(pickle.loads(pickle.dumps(source)))
        assert " at 0x" not in repr(source)
        reprs.add(repr(source))
    assert len(reprs) == len(WRITERS)


def test_missing_files_are_all_named(tmp_path):
    np.save(tmp_path / "x.npy", IMAGES)
    with pytest.raises(FileNotFoundError, match=r"2 of 3 Files of NpyDataSource do not exist: .*one.npy, .*two.npy"):
        NpyDataSource({"a": tmp_path / "one.npy", "b": tmp_path / "x.npy", "c": tmp_path / "two.npy"})
    with pytest.raises(FileNotFoundError, match="none.h5"):
        Hdf5DataSource(tmp_path / "none.h5")


def test_lengths_that_differ_are_named(tmp_path):
    np.savez(tmp_path / "a.npz", x=IMAGES, y=LABELS[:7], scalar=np.float32(1))
    with pytest.raises(PipelineError, match=r"'x'\]: 50, \['y'\]: 7"):
        NpzDataSource(tmp_path / "a.npz", keys=["x", "y"])
    with pytest.raises(PipelineError, match="has no axis"):
        NpzDataSource(tmp_path / "a.npz")
    with pytest.raises(PipelineError, match="has no 'z'; it has 'x', 'y', 'scalar'"):
        NpzDataSource(tmp_path / "a.npz", keys=["z"])
    assert len(NpzDataSource(tmp_path / "a.npz", keys=["y"])) == 7
    with pytest.raises(PipelineError, match="must be a sequence of at least one name"):
        NpzDataSource(tmp_path / "a.npz", keys="x")


# -------------------------------------------------------------------------------------------- NumPy


@settings(max_examples=30)
@given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)))
def test_npy_files_of_any_dtype_and_shape_are_read(tmp_path_factory, array):
    path = tmp_path_factory.mktemp("npy") / "a.npy"
    np.save(path, array)
    source = NpyDataSource(path)
    assert len(source) == len(array)
    for i in range(len(array)):
        row = source[i]
        assert (row.dtype, row.tobytes()) == (array[i].dtype, array[i].tobytes())


def test_a_large_npy_file_is_mapped_and_travels_as_its_path(tmp_path):
    array = np.zeros((3, 11 << 20), np.uint8)
    array[1] = 7
    np.save(tmp_path / "a.npy", array)
    source = NpyDataSource(tmp_path / "a.npy")
    pickled = pickle.dumps(source)
    assert len(pickled) < 1000
    assert_equal(pickle.loads(pickled)[1], array[1])
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1] + b"1" * 9)
    with pytest.raises(DataError, match="changed after the source was created"):
        pickle.loads(pickled)


def test_npy_arrays_in_fortran_order_are_read_by_rows(tmp_path):
    array = np.asfortranarray(RNG.random((5, 3)))
    np.save(tmp_path / "a.npy", array)
    assert_equal(NpyDataSource(tmp_path / "a.npy").__getcolumns__(np.array([4, 1])), array[[4, 1]])


@pytest.mark.parametrize("damage", [lambda content: content[:-5], lambda content: content[:20], lambda content: b""])
def test_damaged_files_are_named(tmp_path, damage):
    np.save(tmp_path / "a.npy", IMAGES)
    np.savez(tmp_path / "a.npz", x=IMAGES)
    (tmp_path / "a.idx").write_bytes(idx_bytes(IMAGES))
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx_bytes(IMAGES)))
    classes = {"a.npy": NpyDataSource, "a.npz": NpzDataSource, "a.idx": IdxDataSource, "a.gz": IdxDataSource}
    for name, kind in classes.items():
        (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
        with pytest.raises(DataError, match=rf"{name} cannot be read as .*Is the file truncated\?"):
            kind(tmp_path / name)


def test_python_objects_in_files_are_not_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}, 1], object))
    np.savez(tmp_path / "a.npz", x=np.array([{}, 1], object))
    with pytest.raises(DataError, match=r"a\.npy cannot be read"):
        NpyDataSource(tmp_path / "a.npy")
    with pytest.raises(DataError, match=r"a\.npz cannot be read as .*array 'x'"):
        NpzDataSource(tmp_path / "a.npz")


def test_a_damaged_array_in_an_npz_file_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00 and nothing more")
    with pytest.raises(DataError, match=r"a\.npz cannot be read"):
        NpzDataSource(tmp_path / "a.npz")


# ---------------------------------------------------------------------------------------------- IDX


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(IDX_CODES)).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(max_dims=4, max_side=4))),
    st.booleans(),
)
def test_idx_files_of_any_dtype_and_shape_are_read(tmp_path_factory, array, zipped):
    path = tmp_path_factory.mktemp("idx") / "a"
    path.write_bytes(gzip.compress(idx_bytes(array)) if zipped else idx_bytes(array))
    read = IdxDataSource(path).__getcolumns__(np.arange(len(array)))
    assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\1\0\x08\1\0\0\0\1x", "begins with 01 00 08 01"),
        (b"\0\0\x07\1\0\0\0\1x", "begins with 00 00 07 01"),
        (b"\0\0\x08\3\0\0\0\1", "ends after 8 bytes, before it has given the lengths of its 3 axes"),
        (b"\0\0\x08\1\0\0\0\5xxx", "which takes 13 bytes, but it has 11"),
        (b"\0\0\x08\1\0\0\0\1xxx", "which takes 9 bytes, but it has more than 9"),
    ],
)
def test_what_is_wrong_with_an_idx_file_is_said(tmp_path, content, message):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match=message):
        IdxDataSource(tmp_path / "a")


# -------------------------------------------------------------------------------------- HDF5, Zarr


def test_hdf5_groups_texts_and_lists_of_any_length(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("text", data=[f"ü{i}" for i in range(9)])
        file.create_dataset("grid", data=[[f"a{i}", "b"] for i in range(9)])
        file["deep/er/x"] = IMAGES[:9]
        file["deep/bytes"] = np.array([b"b%d" % i for i in range(9)])
        lists = file.create_dataset("list", (9,), dtype=h5py.vlen_dtype(np.int32))
        for i in range(9):
            lists[i] = np.arange(i)
    source = Hdf5DataSource(tmp_path / "a.h5")
    element = source[5]
    assert element["text"] == "ü5"
    assert element["grid"].tolist() == ["a5", "b"]
    assert_equal(element["list"], np.arange(5, dtype=np.int32))
    assert_equal(element["deep"], {"bytes": np.bytes_(b"b5"), "er": {"x": IMAGES[5]}})
    assert_block_law(MapDataset.source(source))
    twice = source.__getcolumns__(np.array([5, 5]))["list"]
    twice[0][:] = 9
    assert_equal(twice[1], np.arange(5, dtype=np.int32))
    assert_equal(Hdf5DataSource(tmp_path / "a.h5", group="deep/er/x")[2], IMAGES[2])
    assert list(Hdf5DataSource(tmp_path / "a.h5", keys=["text"])[0]) == ["text"]


@settings(max_examples=25)
@given(
    length=st.integers(1, 60),
    chunk=st.one_of(st.none(), st.integers(1, 70)),
    indices=st.lists(st.integers(0, 59), max_size=40),
)
def test_hdf5_rows_are_those_asked_for_however_they_are_stored(tmp_path_factory, length, chunk, indices):
    h5py = pytest.importorskip("h5py")
    path = tmp_path_factory.mktemp("h5") / "a.h5"
    rows = RNG.random((length, 3))
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=rows, chunks=chunk and (min(chunk, length), 2))
    indices = np.array(indices, np.int64) % length
    source = Hdf5DataSource(path)
    assert_equal(source.__getcolumns__(indices), {"x": rows[indices]})
    source.close()
    assert_equal(source[0], {"x": rows[0]})
    source.close()


def test_zarr_stores_may_be_nested_or_zipped(tmp_path):
    zarr = pytest.importorskip("zarr")
    store = zarr.storage.ZipStore(tmp_path / "a.zip", mode="w")
    zarr.open_group(store, mode="w").create_array("in/side", data=IMAGES, chunks=(9, 4, 3))
    store.close()
    source = ZarrDataSource(tmp_path / "a.zip")
    assert_equal(source[7], {"in": {"side": IMAGES[7]}})
    assert_equal(ZarrDataSource(tmp_path / "a.zip", group="in/side")[7], IMAGES[7])
    assert_block_law(MapDataset.source(source))
    source.close()
    assert_equal(source[8], {"in": {"side": IMAGES[8]}})


def test_groups_that_are_not_there_and_files_of_another_kind_are_named(tmp_path):
    for write, kind in ((write_hdf5, Hdf5DataSource), (write_zarr, ZarrDataSource)):
        path = write(tmp_path)._path
        with pytest.raises(PipelineError, match="no group or array 'nope'; at its top level it has 'x', 'y'"):
            kind(path, group="nope")
        with pytest.raises(PipelineError, match="has no 'q'; it has 'x', 'y'"):
            kind(path, keys=["q"])
        (tmp_path / "other").write_bytes(b"something else")
        with pytest.raises(DataError, match="other cannot be read as an? (HDF5 file|Zarr store)"):
            kind(tmp_path / "other")


def test_hdf5_arrays_of_different_lengths_are_named(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"], file["scalar"] = IMAGES, LABELS[:7], 3
        file.create_group("empty")
    with pytest.raises(PipelineError, match=r"'x'\]: \[50, 4, 3\], \['y'\]: \[7\]. Select some of them with `keys`"):
        Hdf5DataSource(tmp_path / "a.h5", keys=["x", "y"])
    with pytest.raises(PipelineError, match="same length"):
        Hdf5DataSource(tmp_path / "a.h5", keys=["scalar"])
    with pytest.raises(PipelineError, match="Group 'empty' of .* has no arrays"):
        Hdf5DataSource(tmp_path / "a.h5", group="empty")


def test_a_damaged_chunk_is_named_with_its_rows(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        chunks = file.create_dataset("x", data=RNG.integers(256, size=(50, 40)), chunks=(10, 40), compression="gzip")
        place = chunks.id.get_chunk_info(2).byte_offset
    content = bytearray(path.read_bytes())
    content[place : place + 40] = bytes(40)
    path.write_bytes(content)
    source = Hdf5DataSource(path)
    source[5]
    with pytest.raises(DataError, match=r"a\.h5 cannot be read as an HDF5 file, array /x, rows 21 to 21"):
        source[21]


def test_a_damaged_chunk_of_a_zarr_store_is_named(tmp_path):
    zarr = pytest.importorskip("zarr")
    zarr.open_group(tmp_path / "z.zarr", mode="w").create_array("x", data=np.arange(50).reshape(5, 10), chunks=(2, 10))
    (tmp_path / "z.zarr" / "x" / "c" / "1" / "0").write_bytes(b"garbage")
    source = ZarrDataSource(tmp_path / "z.zarr")
    source[0]
    with pytest.raises(DataError, match=r"z\.zarr cannot be read as a Zarr store, array /x, rows 3 to 3"):
        source[3]


def test_arrays_behind_addresses_are_read(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    np.save(tmp_path / "x.npy", IMAGES)
    np.savez(tmp_path / "x.npz", x=IMAGES)
    write_hdf5(tmp_path)
    memory = fsspec.filesystem("memory")
    for name in ("x.npy", "x.npz", "a.h5"):
        memory.pipe_file(f"/headrace-arrays/{name}", (tmp_path / name).read_bytes())
    folder = "memory://headrace-arrays"
    assert_equal(NpyDataSource(f"{folder}/x.npy")[3], IMAGES[3])
    assert_equal(NpzDataSource(f"{folder}/x.npz")[3], {"x": IMAGES[3]})
    assert_equal(Hdf5DataSource(f"{folder}/a.h5")[3], {"x": IMAGES[3], "y": LABELS[3]})


# --------------------------------------------------------------------------------------- chunks of Zarr


def test_a_chunk_that_is_not_there_is_an_error_where_it_has_to_be(tmp_path):
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(
        str(tmp_path / "a.zarr"), shape=(6, 2), chunks=(2, 2), dtype="i4", config={"write_empty_chunks": True}
    )
    array[:4] = 7  # and the last chunk of zeros
    array[4:] = 0
    assert ZarrDataSource(tmp_path / "a.zarr", require_chunks=True)[5].tolist() == [0, 0]
    (tmp_path / "a.zarr" / "c" / "1" / "0").unlink()
    assert ZarrDataSource(tmp_path / "a.zarr")[2].tolist() == [0, 0]
    source = pickle.loads(pickle.dumps(ZarrDataSource(tmp_path / "a.zarr", require_chunks=True)))
    assert source[1].tolist() == [7, 7]
    with pytest.raises(DataError, match="a.zarr cannot be read as .*rows 2 to 2: chunk 'c/1/0' is missing"):
        source[2]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("left", [0, 10, 40])
def test_a_chunk_of_blosc_that_was_cut_short_is_an_error(tmp_path, zarr_format, left):
    zarr, numcodecs = pytest.importorskip("zarr"), pytest.importorskip("numcodecs")
    codec = numcodecs.Blosc() if zarr_format == 2 else zarr.codecs.BloscCodec()
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=zarr_format)
    group.create_array("x", data=np.arange(1000), chunks=(1000,), compressors=[codec])
    chunk = tmp_path / "a.zarr" / "x" / ("0" if zarr_format == 2 else "c/0")
    chunk.write_bytes(chunk.read_bytes()[:left])
    source = ZarrDataSource(tmp_path / "a.zarr")
    with pytest.raises(DataError, match=f"a.zarr .*array /x.*has {left} bytes, but claims"):
        source[0]


def test_arrays_that_are_written_anew_while_they_are_open_are_an_error(tmp_path):
    zarr = pytest.importorskip("zarr")
    zarr.create_array(str(tmp_path / "a.zarr"), data=np.arange(6), chunks=(2,))
    source = ZarrDataSource(tmp_path / "a.zarr")
    assert source[1] == 1
    zarr.create_array(str(tmp_path / "a.zarr"), data=np.arange(4), chunks=(2,), overwrite=True)
    with pytest.raises(DataError, match="zarr.json has changed since its source was created"):
        source[1]
