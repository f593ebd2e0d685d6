"""Tar files of samples: the same as the webdataset package reads, by index and in order."""

import gc
import gzip
import io
import json
import os
import sys
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import webdataset

from headrace import IterDataset, MapDataset, images, sources
from headrace.errors import DataError, PipelineError, StateError
from headrace.sources import DecodeSample, TarDataSource, TarIterDataset, write_tar
from headrace.storage.files import expand_braces
from headrace.testing import assert_equal, assert_resumable

ODD_NAMES = ["a.jpg", "a.JSON", "README", "__meta__/x.json", "__x__", "__y__.txt", "d.e/b.seg.png", "./c.txt"]
ODD_NAMES += [".hidden.txt", "q/.h.txt", "a.cls", "b..txt", "c.", "dir/__k__/z.txt", "e.TXT.Gz", "../../up.txt"]
ODD_NAMES += ["/absolute/f.txt", "é 字.txt", "x" * 99 + ".txt", "y/" * 120 + "z.txt", "w" * 300 + ".txt"]
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def write(path, members, format=tarfile.PAX_FORMAT):
    """Writes files to an archive: names and content, or what Python's library has of a file."""
    with tarfile.open(path, "w", format=format) as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name) if isinstance(name, str) else name
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def numbered(count):
    return [{"__key__": f"{i:04}", "txt": f"text {i}".encode() * (i % 5), "cls": b"%d" % i} for i in range(count)]


def theirs(*paths):
    """What the webdataset package reads, without what it adds of the file."""
    return [{k: v for k, v in one.items() if k not in ("__url__", "__local_path__")} for one in read_by_them(paths)]


def read_by_them(paths, decoded=False):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves files open
        found = webdataset.WebDataset(list(map(str, paths)), shardshuffle=False, empty_check=False)
        samples = list(found.decode() if decoded else found)
        del found
        gc.collect()
    return samples


@pytest.mark.parametrize("format", FORMATS)
def test_samples_are_those_of_webdataset_whatever_the_names(tmp_path, format):
    names = ODD_NAMES if format != tarfile.USTAR_FORMAT else [name for name in ODD_NAMES if len(name) < 100]
    path = write(tmp_path / "a.tar", [(name, name.encode()[:20]) for name in names], format)
    expected = theirs(path)
    assert len(expected) >= len(names) - 6
    for found in (TarIterDataset(path), TarDataSource(path)):
        assert [list(sample.items()) for sample in found] == [list(sample.items()) for sample in expected]
    assert os.listdir(tmp_path.parent / "..").count("up.txt") == 0


def test_archives_that_webdataset_wrote(tmp_path):
    pattern = str(tmp_path / "data-%03d.tar")
    with webdataset.ShardWriter(pattern, maxcount=8, verbose=0) as writer:
        for i in range(20):
            picture = np.full((4, 6, 3), i, np.uint8)
            writer.write({"__key__": f"a/{i:03}", "png": picture, "cls": i, "json": {"i": [i]}, "npy": np.arange(i)})
    found = sources.open(str(tmp_path / "data-{000..002}.tar"))
    assert isinstance(found, TarDataSource)
    assert list(found) == theirs(*found.paths)
    ds = MapDataset.source(found).map(DecodeSample()).map(images.Decode(key="png"))
    for i in (0, 7, 8, 19):
        expected = {"__key__": f"a/{i:03}", "png": np.full((4, 6, 3), i, np.uint8), "cls": i, "json": {"i": [i]}}
        assert_equal(ds[i], {**expected, "npy": np.arange(i)})


def test_webdataset_reads_what_is_written_here(tmp_path):
    samples = [
        {
            "__key__": f"dog/{i}",
            "jpg": b"\xff\xd8 %d" % i,
            "cls": i,
            "txt": f"é {i}",
            "json": {"n": i},
            "npy": np.arange(i),
        }
        for i in range(10)
    ]
    paths = write_tar(samples, tmp_path / "a.tar", num_shards=3)
    assert [os.path.basename(path) for path in paths] == [f"a-0000{i}-of-00003.tar" for i in range(3)]
    for sample, one in zip(samples, read_by_them(paths, decoded=True), strict=True):
        assert_equal(
            {name: one[name] for name in sample if name != "jpg"}, {k: v for k, v in sample.items() if k != "jpg"}
        )
    ours = MapDataset.source(sources.open(paths)).map(DecodeSample())
    assert_equal(list(ours), samples)


def test_samples_without_a_key_get_their_number(tmp_path):
    records = [{"cls": i} for i in range(5)]
    many = [records, iter(records), MapDataset.source(records), MapDataset.source(records).to_iter_dataset()]
    many.append(dict(enumerate(records)).values())  # to be iterated over again and again
    for i, given in enumerate(many):
        (path,) = write_tar(given, tmp_path / f"{i}.tar")
        assert list(TarDataSource(path)) == [{"__key__": f"{i:09}", "cls": b"%d" % i} for i in range(5)]
    paths = write_tar(many[4], tmp_path / "shards.tar", num_shards=2)
    assert [sample["__key__"] for sample in TarDataSource(paths)] == [f"{i:09}" for i in range(5)]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"bytes", "A sample of a tar file must be a dict of files by extension.*got bytes"),
        ({"__key__": "a.b", "txt": "x"}, "would not read back as the key 'a.b' and the extension 'txt'"),
        ({"__key__": "__a__/b", "txt": "x"}, "key '__a__/b' and the extension"),
        ({"__key__": 3, "txt": "x"}, "key 3 "),
        ({"__key__": "a", "TXT": "x"}, "extension 'TXT'"),
        ({"__key__": "a", "x/y": "x"}, "extension 'x/y'"),
        ({"__key__": "a"}, "sample 'a' has no files"),
        ({"jpg": np.zeros((2, 2))}, "jpg cannot hold a value of the type ndarray: its extension names no encoding"),
        ({"cls": 1.5}, "cls cannot hold a value of the type float"),
        ({"json": {1, 2}}, "json cannot hold this value: .*set"),
        ({"json": {"a": (1, 2)}}, "json cannot hold this value: it would be read back as another one"),
        ({"jpg": "text"}, "jpg cannot hold a value of the type str.*use the extension `txt` for text"),
        ({"npy": np.array([None])}, "npy cannot hold this value: .*allow_pickle"),
    ],
)
def test_samples_that_cannot_be_written_are_errors(tmp_path, record, said):
    with pytest.raises(PipelineError, match=said):
        write_tar([record], tmp_path / "a.tar")
    assert os.listdir(tmp_path) == []


def test_plain_files_lose_what_their_extension_does_not_say(tmp_path):
    (path,) = write_tar([{"json": {"a": (1, 2)}, "jpg": "text"}], tmp_path / "a.tar", plain=True)
    (found,) = MapDataset.source(TarDataSource(path)).map(DecodeSample())
    assert found == {"__key__": "000000000", "json": {"a": [1, 2]}, "jpg": b"text"}


def test_two_samples_with_one_key_are_an_error_when_written(tmp_path):
    with pytest.raises(PipelineError, match="Two consecutive samples have the key 'a'"):
        write_tar([{"__key__": "a", "txt": "1"}, {"__key__": "a", "cls": 1}], tmp_path / "a.tar")


def test_an_empty_archive(tmp_path):
    (path,) = write_tar([], tmp_path / "a.tar")
    assert list(sources.open(path)) == list(TarIterDataset(path)) == []


# ------------------------------------------------------------------------------------------------- positions


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_tar(numbered(50), tmp_path_factory.mktemp("tar") / "a.tar", num_shards=3)


@pytest.fixture(scope="module")
def zipped(tmp_path_factory, shards):
    folder = tmp_path_factory.mktemp("zipped")
    for path in shards:
        (folder / f"{os.path.basename(path)}.gz").write_bytes(gzip.compress(Path(path).read_bytes()))
    return sorted(map(str, folder.iterdir()))


def test_streams_resume_exactly(shards, zipped):
    for paths in (shards, zipped):
        assert_resumable(TarIterDataset(paths))
        assert_resumable(TarIterDataset(paths).window_shuffle(7, seed=1))
    iterator = TarIterDataset(shards).__iter__()
    _ = [next(iterator) for _ in range(20)]
    assert iterator.get_state() == {"file": 1, "offset": 3 * 2 * 1024}


def test_compressed_archives_are_read_in_order_only(shards, zipped):
    stream = sources.open(zipped)
    assert isinstance(stream, IterDataset)
    assert list(stream) == list(TarIterDataset(shards)) == list(TarDataSource(shards)) == theirs(*zipped)
    with pytest.raises(PipelineError, match=r"\.tar\.gz is compressed, so .*`TarIterDataset`, or decompress it"):
        TarDataSource(zipped)
    assert isinstance(sources.open(zipped[0]), TarIterDataset)


def test_a_tgz_file(tmp_path, zipped):
    os.link(zipped[0], tmp_path / "a.tgz")
    assert list(sources.open(tmp_path / "a.tgz")) == list(TarIterDataset(zipped[0]))


def test_zstd_is_an_error_that_says_what_to_do(tmp_path):
    (tmp_path / "a.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    for kind in (TarIterDataset, TarDataSource):
        with pytest.raises((DataError, PipelineError), match="a.tar.zst is compressed.* (D|d)ecompress it"):
            list(kind(tmp_path / "a.tar.zst"))


@pytest.mark.parametrize(
    "state", [{"file": 0, "offset": 1100}, {"file": 0, "offset": 1 << 40}, {"file": 0, "offset": 7}]
)
def test_a_state_of_another_file(shards, zipped, state):
    for paths in (shards, zipped):
        iterator = TarIterDataset(paths).__iter__()
        iterator.set_state(state)
        for _ in range(2):
            with pytest.raises(StateError, match="The state was saved with a different file"):
                next(iterator)


@pytest.mark.parametrize("state", [{"file": 9, "offset": 0}, {"file": 0}, {"file": 0, "offset": -1}, [], {"file": "x"}])
def test_a_state_of_another_pipeline(shards, state):
    with pytest.raises(StateError, match="tar files"):
        TarIterDataset(shards).__iter__().set_state(state)


def test_an_index_is_stored_and_made_again_when_the_file_changes(tmp_path):
    (path,) = write_tar(numbered(20), tmp_path / "a.tar")
    assert len(TarDataSource(path)) == 20
    index = tmp_path / ".a.tar.headrace-tar"
    made = index.stat().st_mtime_ns
    assert len(TarDataSource(path)) == 20
    assert index.stat().st_mtime_ns == made
    write_tar(numbered(30), path, overwrite=True)
    assert len(TarDataSource(path)) == 30
    elsewhere = tmp_path / "indexes"
    assert list(TarDataSource(path, index_dir=elsewhere)) == numbered(30)
    assert len(list(elsewhere.iterdir())) == 1


def test_large_and_small_files_are_found(tmp_path):
    members = [
        (f"{i}.bin", bytes([i]) * size) for i, size in enumerate([0, 1, 511, 512, 513, 3 << 20, 40_000, 5, 1 << 20])
    ]
    path = write(tmp_path / "a.tar", members)
    for found in (TarDataSource(path), TarIterDataset(path)):
        assert [sample["bin"] for sample in found] == [content for _, content in members]


def test_samples_far_apart_and_next_to_each_other(tmp_path):
    (path,) = write_tar(({"bin": bytes([i % 251]) * 100_000} for i in range(200)), tmp_path / "a.tar")
    source = TarDataSource(path)
    for indices in (range(200), [0, 199, 5, 5], range(0, 200, 3)):
        found = source.__getitems__(list(indices))
        assert [sample["bin"][:1] for sample in found] == [bytes([i % 251]) for i in indices]
        assert {len(sample["bin"]) for sample in found} == {100_000}


# --------------------------------------------------------------------------------------------------- decoding


def test_values_are_decoded_by_their_extensions():
    content = io.BytesIO()
    np.save(content, np.arange(3))
    zipped = io.BytesIO()
    np.savez(zipped, x=np.arange(2))
    sample = {
        "__key__": "k.txt",
        "a.txt": "é".encode(),
        "cls": b" 12\n",
        "json": b'{"a": 1}',
        "npy": content.getvalue(),
    }
    sample |= {"npz": zipped.getvalue(), "bin": b"\0", "hex": b"ff"}
    decode = DecodeSample({"hex": lambda text: int(text, 16), "json": None})
    expected = {"__key__": "k.txt", "a.txt": "é", "cls": 12, "json": b'{"a": 1}', "npy": np.arange(3)}
    assert_equal(decode.map(sample), {**expected, "npz": {"x": np.arange(2)}, "bin": b"\0", "hex": 255})
    assert repr(decode).startswith("DecodeSample(class, cls")


@pytest.mark.parametrize(
    ("name", "value"),
    [("cls", b"x"), ("json", b"{"), ("txt", b"\xff"), ("npy", b""), ("npz", b"PK\3\4"), ("npy", b"\x93NUMPY")],
)
def test_values_that_do_not_decode_are_errors_with_their_key(name, value):
    with pytest.raises(DataError, match=f"'{name}' of the sample 'dog/1' cannot be decoded: .*starts with"):
        DecodeSample().map({"__key__": "dog/1", name: value})


def test_pickles_in_arrays_are_not_loaded():
    content = io.BytesIO()
    np.save(content, np.array([print], object), allow_pickle=True)
    with pytest.raises(DataError, match="allow_pickle=False"):
        DecodeSample().map({"__key__": "a", "npy": content.getvalue()})


def test_an_error_of_ones_own_decoder_is_raised_as_it_is():
    with pytest.raises(ZeroDivisionError) as raised:
        DecodeSample({"bad": lambda _: 1 / 0}).map({"__key__": "a", "bad": b""})
    assert raised.value.__notes__ == ["decoding 'bad' of the sample 'a'"]


def test_images_are_decoded_in_workers(tmp_path):
    cv2 = pytest.importorskip("cv2")
    encoded = [cv2.imencode(".png", np.full((3, 5, 3), i, np.uint8))[1].tobytes() for i in range(12)]
    (path,) = write_tar([{"png": one, "json": json.dumps([i])} for i, one in enumerate(encoded)], tmp_path / "a.tar")
    ds = MapDataset.source(TarDataSource(path)).shuffle(seed=1).map(images.Decode(key="png")).to_iter_dataset()
    found = {sample["__key__"]: sample["png"] for sample in ds.mp_prefetch(2)}
    assert_equal(found, {f"{i:09}": np.full((3, 5, 3), i, np.uint8) for i in [int(key) for key in found]})
    assert len(found) == 12


# ------------------------------------------------------------------------------- damaged and hostile archives


def both(path, said):
    """Asserts that random access and streams say the same of an archive, with its name."""
    for kind in (TarDataSource, TarIterDataset):
        for _ in range(2):
            with pytest.raises(DataError, match=said) as raised:
                list(kind(path))
            assert str(path) in str(raised.value)


def entry(name, kind=tarfile.REGTYPE, **attributes):
    made = tarfile.TarInfo(name)
    made.type = kind
    for each, value in attributes.items():
        setattr(made, each, value)
    return made


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_links_are_errors_that_say_what_to_do(tmp_path, kind):
    path = write(tmp_path / "a.tar", [("a.txt", b"1"), (entry("b.txt", kind, linkname="../../etc/passwd"), b"")])
    both(path, r"'b.txt' is a link, .* `tar --dereference --hard-dereference`")
    path = write(tmp_path / "b.tar", [("a.txt", b"1"), (entry("README", kind, linkname="a.txt"), b"")])
    assert list(TarIterDataset(path)) == list(TarDataSource(path)) == theirs(path)


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_folders_and_devices_have_no_files(tmp_path, kind):
    path = write(
        tmp_path / "a.tar", [(entry("x.d", kind), b""), ("a.txt", b"1"), (entry("y.d", kind), b""), ("a.cls", b"2")]
    )
    assert (
        list(TarIterDataset(path))
        == list(TarDataSource(path))
        == theirs(path)
        == [{"__key__": "a", "txt": b"1", "cls": b"2"}]
    )


@pytest.mark.parametrize("pax", [{}, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}])
def test_sparse_files_are_errors(tmp_path, pax):
    sparse = entry("b.bin", tarfile.REGTYPE if pax else tarfile.GNUTYPE_SPARSE, pax_headers=pax)
    both(write(tmp_path / "a.tar", [("a.txt", b"1"), (sparse, b"2")]), "as a sparse file, .*without `--sparse`")


def test_unknown_kinds_are_errors(tmp_path):
    both(
        write(tmp_path / "a.tar", [(entry("a.txt", b"M"), b"1")]), r"'a.txt' has the type b'M', which is not supported"
    )


def test_a_global_header_that_names_files_is_an_error(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", pax_headers={"comment": "size=3"}) as archive:
        archive.addfile(entry("a.txt"), io.BytesIO())
    assert list(TarDataSource(tmp_path / "a.tar")) == [{"__key__": "a", "txt": b""}]
    with tarfile.open(tmp_path / "b.tar", "w", pax_headers={"path": "evil.txt"}) as archive:
        archive.addfile(entry("a.txt"), io.BytesIO())
    both(tmp_path / "b.tar", "a global header gives one name or size to many files")


def test_two_files_of_one_name_are_an_error(tmp_path):
    both(
        write(tmp_path / "a.tar", [("a.txt", b"1"), ("a.TXT", b"2")]),
        "sample 'a' has two files with the extension 'txt'",
    )
    both(write(tmp_path / "b.tar", [("a.__key__", b"1")]), "'a' has two files with the extension '__key__'")


def test_an_archive_that_ends_too_early_wherever_it_is_cut(tmp_path):
    whole = write(tmp_path / "whole.tar", [(f"{i}.txt", b"x" * 700) for i in range(2)], tarfile.GNU_FORMAT).read_bytes()
    for cut in (0, 1, 100, 512, 600, 1024, 1211, 1536, 2048, 3071):
        path = tmp_path / f"{cut}.tar"
        path.write_bytes(whole[:cut])
        both(path, f"{cut}.tar is damaged at offset .* Is the file truncated")
        (tmp_path / f"{cut}.tar.gz").write_bytes(gzip.compress(whole[:cut]))
        with pytest.raises(DataError, match=f"{cut}.tar.gz is damaged at offset"):
            list(TarIterDataset(tmp_path / f"{cut}.tar.gz"))
    zipped = gzip.compress(whole)
    (tmp_path / "cut.tar.gz").write_bytes(zipped[: len(zipped) // 2])
    with pytest.raises(DataError, match="cut.tar.gz is damaged at offset .*compressed bytes"):
        list(TarIterDataset(tmp_path / "cut.tar.gz"))


def test_an_archive_without_an_end_can_be_given_one(tmp_path):
    whole = write(tmp_path / "a.tar", [("a.txt", b"1")], tarfile.GNU_FORMAT).read_bytes()
    (tmp_path / "a.tar").write_bytes(whole[:1024])
    with pytest.raises(DataError, match="lacks the blocks of zeros") as raised:
        TarDataSource(tmp_path / "a.tar")
    (note,) = raised.value.__notes__
    assert os.system(note.partition(": ")[2]) == 0
    assert list(TarDataSource(tmp_path / "a.tar")) == [{"__key__": "a", "txt": b"1"}]


def test_what_follows_the_end_is_not_lost_silently(tmp_path):
    one = write(tmp_path / "a.tar", [("a.txt", b"1")]).read_bytes()
    (tmp_path / "b.tar").write_bytes(one + one)
    both(tmp_path / "b.tar", "its end is marked here, but more follows")


@pytest.mark.parametrize("size", [1 << 60, (1 << 64) + 5, 1 << 87, 100_000])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGLINK])
def test_sizes_beyond_the_end(tmp_path, size, kind):
    made = entry("a.txt", kind, size=size)
    (tmp_path / "a.tar").write_bytes(made.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    both(tmp_path / "a.tar", "a.tar is damaged at offset")
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(made.tobuf(tarfile.GNU_FORMAT) + bytes(4096)))
    with pytest.raises(DataError, match="a.tar.gz"):
        list(TarIterDataset(tmp_path / "a.tar.gz"))


@pytest.mark.parametrize("size", [b"-0000000001\0", b"xxxxxxxxxxx\0", b"\xff" * 12])
def test_sizes_that_are_not_sizes(tmp_path, size):
    header = bytearray(entry("a.txt").tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(bytes(header) + bytes(1024))
    both(tmp_path / "a.tar", "a header has the size")


@pytest.mark.parametrize(
    "attributes",
    [
        b"30 path=x.txt\n",
        b"0 path=x\n",
        b"x path=y\n",
        b"9 path=xxx\n",
        b"9 path=x",
        b"99999999999999999999999 path=x\n",
    ],
)
def test_attributes_that_cannot_be_read(tmp_path, attributes):
    header = entry("a", tarfile.XHDTYPE, size=len(attributes)).tobuf(tarfile.USTAR_FORMAT)
    (tmp_path / "a.tar").write_bytes(header + attributes.ljust(512, b"\0") + bytes(1024))
    both(tmp_path / "a.tar", "attributes of a file cannot be read")


def test_a_size_in_attributes_counts(tmp_path):
    size = b"12 size=700\n"
    content = b"y" * 700
    (tmp_path / "a.tar").write_bytes(
        entry("a", tarfile.XHDTYPE, size=len(size)).tobuf(tarfile.USTAR_FORMAT)
        + size.ljust(512, b"\0")
        + entry("a.txt").tobuf(tarfile.USTAR_FORMAT)
        + content.ljust(1024, b"\0")
        + bytes(1024)
    )
    assert list(TarDataSource(tmp_path / "a.tar")) == [{"__key__": "a", "txt": content}] == theirs(tmp_path / "a.tar")
    (tmp_path / "b.tar").write_bytes((tmp_path / "a.tar").read_bytes().replace(b"size=700", b"size=x00"))
    both(tmp_path / "b.tar", "a header has the size b'x00'")


def test_checksums_of_signed_bytes_are_right_too(tmp_path):
    header = bytearray(entry("é.txt").tobuf(tarfile.USTAR_FORMAT))
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(np.frombuffer(bytes(header), np.int8).astype(int))
    (tmp_path / "a.tar").write_bytes(bytes(header) + bytes(1024))
    assert list(TarDataSource(tmp_path / "a.tar")) == [{"__key__": "é", "txt": b""}]


def test_much_in_a_small_compressed_archive_is_an_error(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.addfile(entry("a.bin", size=3 << 20), io.BytesIO(bytes(3 << 20)))
    path = tmp_path / "a.tar.gz"
    with pytest.raises(DataError, match=r"a.tar.gz.*at least 3145728 bytes, but `max_sample_bytes` is 1000000"):
        list(TarIterDataset(path, max_sample_bytes=1_000_000))
    assert len(list(TarIterDataset(path))) == 1


def test_a_file_that_changes_under_a_stream_is_an_error(tmp_path):
    (path,) = write_tar(({"bin": bytes(50_000)} for _ in range(100)), tmp_path / "a.tar")
    iterator = iter(TarIterDataset(path))
    next(iterator)
    os.utime(path, (1, 1))
    with pytest.raises(DataError, match="a.tar has changed since its source was created"):
        list(iterator)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a-{000..002}.tar", ["a-000.tar", "a-001.tar", "a-002.tar"]),
        ("a-{8..10}.tar", ["a-8.tar", "a-9.tar", "a-10.tar"]),
        ("a-{2..1}", ["a-2", "a-1"]),
        ("{x,y}{1..2}", ["x1", "x2", "y1", "y2"]),
        ("{x,}y", ["xy", "y"]),
        ("{x}", ["{x}"]),
        ("{a,{b,c}}", ["{a,{b,c}}"]),
        ("{1..x}", ["{1..x}"]),
        ("plain", ["plain"]),
    ],
)
def test_braces(path, expected):
    assert expand_braces(path) == expected


def test_missing_files_in_braces_are_named_and_too_many_are_an_error(tmp_path, shards):
    write_tar(numbered(3), tmp_path / "a-1.tar")
    with pytest.raises(FileNotFoundError, match=r"2 of 3 paths of tar files match no file: \S*a-0.tar, \S*a-2.tar"):
        TarDataSource(str(tmp_path / "a-{0..2}.tar"))
    with pytest.raises(PipelineError, match="the limit is 100000"):
        TarDataSource("{0..999999999999}.tar")
    (tmp_path / "a-{0,1}.tar").write_bytes((tmp_path / "a-1.tar").read_bytes())
    assert TarDataSource(str(tmp_path / "a-{0,1}.tar")).paths == [str(tmp_path / "a-{0,1}.tar")]


def test_braces_name_files_of_other_formats_too(tmp_path):
    pytest.importorskip("array_record")
    sources.write_array_record([b"0", b"1", b"2"], tmp_path / "a.array_record", num_shards=2)
    found = sources.open(str(tmp_path / "a-0000{0..1}-of-00002.array_record"))
    assert list(found) == [b"0", b"1", b"2"]


def test_the_library_is_imported_without_the_webdataset_package():
    assert "webdataset" in sys.modules  # by this test alone
    assert not any("webdataset" in vars(module) for name, module in sys.modules.items() if name.startswith("headrace."))
