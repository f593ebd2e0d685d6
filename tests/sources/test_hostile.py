"""Files made to do harm: to read other files, run code, or take all memory. They are errors that name the file."""

import contextlib
import json
import os
import pickle
import sqlite3
import struct
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest

from headrace.errors import DataError
from headrace.sources import (
    Hdf5DataSource,
    IdxDataSource,
    ImageFolderDataSource,
    NpyDataSource,
    NpzDataSource,
    SqlDataSource,
    ZarrDataSource,
)
from tests.support.proc import LIMIT_S


class Harm:
    """Unpickling it makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def npy(shape):
    """The bytes of a `.npy` file that says that it has a shape."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(64)


def test_pickled_objects_are_not_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.array([Harm(tmp_path / "harm"), 1], object), allow_pickle=True)
    np.savez(tmp_path / "a.npz", x=np.array([Harm(tmp_path / "harm"), 1], object))
    with pytest.raises(DataError, match="a.npy cannot be read as a `.npy` file: .*Python objects"):
        NpyDataSource(tmp_path / "a.npy")
    with pytest.raises(DataError, match="a.npz cannot be read as a `.npz` file: .*allow_pickle=False"):
        NpzDataSource(tmp_path / "a.npz")
    assert not (tmp_path / "harm").exists()


TEXT, PICKLE = {"id": "vlen-utf8"}, {"id": "pickle"}


@pytest.mark.parametrize("codecs", [([PICKLE], None), ([TEXT, PICKLE], None), ([TEXT], PICKLE)])
def test_pickles_in_zarr_are_not_loaded(tmp_path, codecs, monkeypatch):
    numcodecs = pytest.importorskip("numcodecs")
    zarr = pytest.importorskip("zarr")
    monkeypatch.setattr(
        numcodecs.Pickle, "decode", lambda _, chunk, out=None: pickle.loads(bytes(chunk))
    )  # older ones do
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
    group.create_array("x", data=np.arange(4), chunks=(4,))
    described = json.loads((tmp_path / "a.zarr" / "x" / ".zarray").read_text())
    described |= {"dtype": "|O", "filters": codecs[0], "fill_value": None, "compressor": codecs[1]}
    (tmp_path / "a.zarr" / "x" / ".zarray").write_text(json.dumps(described))
    (tmp_path / "a.zarr" / "x" / "0").write_bytes(pickle.dumps(Harm(tmp_path / "harm")))
    with pytest.raises(DataError, match="a.zarr cannot be read as a Zarr store"):
        ZarrDataSource(tmp_path / "a.zarr")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("length", [1 << 60, 1 << 40])
def test_arrays_that_say_they_are_long(tmp_path, length):
    (tmp_path / "a.npy").write_bytes(npy((length,)))
    with pytest.raises(DataError, match="a.npy cannot be read as a `.npy` file"):
        NpyDataSource(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy((length,)))
        archive.infolist()[0].file_size = length * 8  # which is written at the end
    with pytest.raises(DataError, match=f"a.npz .*takes {length * 8} bytes, but the memory of this machine is"):
        NpzDataSource(tmp_path / "a.npz")


def test_an_array_in_an_archive_that_says_it_is_longer_than_it_is(tmp_path):
    length = 30 << 27  # 30 GiB
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy((length,)))
    with pytest.raises(
        DataError, match=rf"a.npz .*array 'x': its shape is .* takes {length * 8} bytes, but it has \d+"
    ):
        NpzDataSource(tmp_path / "a.npz")


def test_an_archive_that_needs_more_memory_than_there_is(tmp_path):
    program = """if True:
        import resource, sys
        import numpy as np
        from headrace.errors import DataError
        from headrace.sources import NpzDataSource

        np.savez_compressed(sys.argv[1], x=np.zeros(1 << 26))
        resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
        try:
            NpzDataSource(sys.argv[1])
        except DataError as e:
            print(isinstance(e, MemoryError), e)
    """
    command = [sys.executable, "-c", program, str(tmp_path / "a.npz")]
    said = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    )
    assert said.stdout.startswith(f"True {tmp_path / 'a.npz'} cannot be read as a `.npz` file: not enough memory"), (
        said.stderr
    )


def test_an_idx_file_that_says_it_is_long(tmp_path):
    (tmp_path / "a-ubyte").write_bytes(b"\0\0\x08\x02" + b"\xff" * 8)
    with pytest.raises(
        DataError, match="a-ubyte cannot be read as an IDX file: its shape is .* memory of this machine"
    ):
        IdxDataSource(tmp_path / "a-ubyte")


def test_a_row_that_does_not_fit_into_memory_names_its_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", shape=(4, 1 << 50), dtype="i1", chunks=(1, 1 << 20))
    with pytest.raises(MemoryError) as raised:
        Hdf5DataSource(tmp_path / "a.h5")[0]
    assert "a.h5 as an HDF5 file, array /x, rows 0 to 0" in raised.value.__notes__[0]


def test_an_image_that_says_it_is_large(tmp_path):
    pytest.importorskip("cv2")

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(60_000)))
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b""))
    with pytest.raises(DataError, match="a.png does not decode as an image"):
        ImageFolderDataSource(tmp_path)[0]


def test_names_in_archives_are_not_paths(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("../x.npy", npy((8,)))
    assert list(NpzDataSource(tmp_path / "a.npz")[0]) == ["../x"]
    assert not (tmp_path.parent / "x.npy").exists()


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("name", ["../other", "..", "a/../../other"])
def test_zarr_does_not_leave_its_folder(tmp_path, name):
    zarr = pytest.importorskip("zarr")
    for folder in ("other", "a.zarr"):
        zarr.open_group(str(tmp_path / folder), mode="w").create_array("x", data=np.arange(4), chunks=(2,))
    zarr.consolidate_metadata(str(tmp_path / "a.zarr"))
    described = json.loads((tmp_path / "a.zarr" / "zarr.json").read_text())
    members = described["consolidated_metadata"]["metadata"]
    described["consolidated_metadata"]["metadata"] = {
        name: {"attributes": {}, "zarr_format": 3, "node_type": "group"},
        f"{name}/x": members["x"],
    }
    (tmp_path / "a.zarr" / "zarr.json").write_text(json.dumps(described))
    with pytest.raises(DataError, match="a.zarr cannot be read as a Zarr store"):
        ZarrDataSource(tmp_path / "a.zarr")[0]


@pytest.mark.parametrize("kind", ["external storage", "a link", "a virtual dataset"])
def test_hdf5_takes_data_only_from_files_in_its_folder(tmp_path, kind):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "here").mkdir()
    for folder in (tmp_path, tmp_path / "here"):
        (folder / "b.raw").write_bytes(np.arange(4, dtype="<i8").tobytes())
        with h5py.File(folder / "b.h5", "w") as file:
            file["x"] = np.arange(4)

    def write(target, near):
        other = tmp_path / "here" if near else tmp_path
        with h5py.File(target, "w") as file:
            if kind == "external storage":
                file.create_dataset("x", (4,), "<i8", external=[(str(other / "b.raw"), 0, 32)])
            elif kind == "a link":
                file["x"] = h5py.ExternalLink("b.h5" if near else "../b.h5", "/x")
            else:
                layout = h5py.VirtualLayout((4,), "i8")
                layout[:] = h5py.VirtualSource("b.h5" if near else str(other / "b.h5"), "x", (4,))
                file.create_virtual_dataset("x", layout)

    path = tmp_path / "here" / "a.h5"
    write(path, True)
    assert Hdf5DataSource(path)[3] == {"x": 3}
    assert pickle.loads(pickle.dumps(Hdf5DataSource(path)))[3] == {"x": 3}
    write(path, False)
    for options in ({}, {"group": "x"}):
        with pytest.raises(DataError, match=r"a.h5 reads data from '.*b.(raw|h5)', outside its folder"):
            Hdf5DataSource(path, **options)
    assert Hdf5DataSource(path, external=True)[3] == {"x": 3}


@pytest.mark.parametrize("key", ['a"b', 'x" IN (1) OR 1=1; DROP TABLE t; --', "x'; DROP TABLE t; --", 'x") --'])
def test_names_for_sql_are_names(tmp_path, key):
    quoted = key.replace('"', '""')
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as db, db:
        db.execute(f'CREATE TABLE t ("{quoted}" INTEGER, x TEXT)')
        db.execute("INSERT INTO t VALUES (2, 'b'), (1, 'a')")
    with SqlDataSource(tmp_path / "a.db", "SELECT * FROM t", key=key) as source:
        assert list(source) == [{key: 1, "x": "a"}, {key: 2, "x": "b"}]
        assert source[1] == {key: 2, "x": "b"}
