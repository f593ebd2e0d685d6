"""Signed addresses: nothing shows the signature, and an object that is signed anew is the same object."""

import argparse
import json
import stat
import traceback
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from headrace import DataLoader, IterDataset, MapDataset, __main__
from headrace.cli import convert
from headrace.errors import HeadraceError, RemoteError
from headrace.samplers import IndexSampler
from headrace.sources import (
    Address,
    CsvDataSource,
    Hdf5DataSource,
    JsonLinesDataSource,
    JsonLinesIterDataset,
    NpyDataSource,
    NpzDataSource,
    ParquetDataSource,
    SqlDataSource,
    TFRecordDataSource,
    TFRecordIterDataset,
    ZarrDataSource,
)
from headrace.sources.writers import write_array_record, write_json_lines, write_parquet, write_tfrecord
from headrace.storage import files, remote
from tests.storage import test_remote, test_remote_s3
from tests.storage.test_remote import TWO, FixedRecords, some_bytes

cache_folder, bucket = test_remote.cache_folder, test_remote_s3.bucket
SECRETS = ("firstSecret", "secondSecret", "wrongSecret", "pa55word")


class Guarded(test_remote.Handler):
    """Serves those who know a token; a request is told apart by its `id`."""

    def _answer(self, server, fault, body):
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if query.get("token", [""])[0] not in SECRETS[:2]:
            fault = 403
        self.path = parts.path + (f"?id={query['id'][0]}" if "id" in query else "")
        super()._answer(server, fault, body)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(test_remote, "Handler", Guarded)
    yield from test_remote.server.__wrapped__()


def signed(server, name, token="firstSecret", login="me:pa55word@"):
    separator = "&" if "?" in name else "?"
    return server.url(f"{name}{separator}token={token}").replace("://", f"://{login}")


def shows(text):
    return [secret for secret in SECRETS if secret in text]


def shown(error):
    """All that a log would have of an error, but for lines of source code: those of this file have secrets."""
    if error is None:
        return ""
    below = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "".join(traceback.format_exception_only(error)) + repr(error) + shown(below)


def write_files(tmp_path):
    rows = [{"x": i, "y": i / 2} for i in range(40)]
    write_tfrecord([b"%d" % i for i in range(40)], tmp_path / "a.tfrecord")
    write_json_lines(rows, tmp_path / "a.jsonl")
    write_parquet(rows, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{row['x']},{row['y']}\n" for row in rows))
    np.save(tmp_path / "a.npy", np.arange(40))
    np.savez(tmp_path / "a.npz", x=np.arange(40))
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(40)
    return {path.name: path.read_bytes() for path in tmp_path.glob("a.*")}


KINDS = {
    "a.tfrecord": TFRecordDataSource,
    "a.jsonl": JsonLinesDataSource,
    "a.parquet": ParquetDataSource,
    "a.csv": CsvDataSource,
    "a.npy": NpyDataSource,
    "a.npz": NpzDataSource,
    "a.h5": Hdf5DataSource,
}


def loader(source):
    return DataLoader(data_source=source, sampler=IndexSampler(len(source), shuffle=True, seed=1, num_epochs=1))


@pytest.mark.parametrize("name", KINDS)
def test_a_source_shows_no_secret_and_its_state_holds_when_it_is_signed_anew(server, tmp_path, cache_folder, name):
    server.contents.update(write_files(tmp_path))
    source = KINDS[name](signed(server, name))
    ds = MapDataset.source(source).shuffle(seed=1).to_iter_dataset()
    iterator = iter(loader(source))
    before = [next(iterator) for _ in range(10)]
    state = iterator.get_state()
    rest = list(iterator)
    texts = [repr(source), repr(ds), str(ds), str(ds.explain()), state.decode(), json.dumps(iter(ds).get_state())]
    assert [shows(text) for text in texts] == [[]] * len(texts)
    again = KINDS[name](signed(server, name, "secondSecret", login=""))
    assert repr(again) == repr(source)
    iterator = iter(loader(again))
    iterator.set_state(state)
    np.testing.assert_equal(list(iterator), rest)
    assert len(before) + len(rest) == 40
    kept = [path.relative_to(cache_folder.parent) for path in cache_folder.parent.rglob("*")]
    assert not shows(str(kept))
    assert not any("token" in str(path) for path in kept)


@pytest.mark.parametrize("name", KINDS)
def test_errors_show_no_secret(server, tmp_path, name):
    server.contents |= {name: content[: len(content) // 2] for name, content in write_files(tmp_path).items()}
    server.contents["a.csv"] += b',"'
    kind = KINDS[name]
    for address in (signed(server, name, "wrongSecret"), signed(server, f"missing-{name}"), signed(server, name)):
        with pytest.raises((HeadraceError, FileNotFoundError), match="…") as caught:
            list(MapDataset.source(kind(address)))  # some notice half a file only there
        assert not shows(shown(caught.value))


def test_an_error_of_a_worker_shows_no_secret(server):
    server.contents["a"] = some_bytes(100_000)
    source = FixedRecords(signed(server, "a"))
    server.fault = lambda number: 403
    ds = MapDataset.source(source).to_iter_dataset().mp_prefetch(TWO)
    with pytest.raises(RemoteError, match="403") as caught:
        list(ds)
    assert not shows(shown(caught.value))


def test_faults_that_do_not_pass_show_no_secret(server, monkeypatch):
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    server.contents["a"] = some_bytes(1000)
    file = files.open_file(signed(server, "a"))
    for fault in (503, "drop", "half"):
        server.fault = lambda number, fault=fault: fault
        with pytest.raises(RemoteError, match=r"a\?… failed 2 times") as caught:
            file.read(0, 10)
        assert not shows(shown(caught.value))


def test_streams_and_their_labels_show_no_secret(server, tmp_path):
    server.contents.update(write_files(tmp_path))
    paths = [signed(server, "a.tfrecord"), signed(server, "a.tfrecord", "secondSecret")]
    ds = IterDataset.interleave(MapDataset.source(paths).map(TFRecordIterDataset), cycle_length=2)
    assert len(list(ds)) == 80
    lines = JsonLinesIterDataset(signed(server, "a.jsonl"))
    iterator = iter(lines)
    next(iterator)
    server.fault = lambda number: 403
    with pytest.raises(RemoteError) as caught:
        list(JsonLinesIterDataset.__iter__(lines))
    texts = [repr(ds), str(ds.explain()), repr(lines), str(iterator.get_state()), shown(caught.value)]
    assert [shows(text) for text in texts] == [[]] * len(texts)


def test_a_users_own_source_is_named_without_secrets_in_a_state(server):
    server.contents["a"] = some_bytes(10_000)
    iterator = iter(loader(FixedRecords(signed(server, "a"))))
    next(iterator)
    state = iterator.get_state()
    assert not shows(state.decode())
    again = iter(loader(FixedRecords(signed(server, "a", "secondSecret"))))
    again.set_state(state)
    assert next(again) == next(iterator)


def test_what_was_read_is_found_in_the_cache_when_it_is_signed_anew(server, cache_folder):
    content = server.contents["a"] = some_bytes(600_000)
    assert files.open_file(signed(server, "a")).read(0, 600_000) == content
    server.requests.clear()
    assert files.open_file(signed(server, "a", "secondSecret", login="")).read(0, 600_000) == content
    assert [command for command, _, _ in server.requests] == ["HEAD"]
    found = list(cache_folder.rglob("*"))
    assert len(found) > 3
    for path in (cache_folder, *found):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_an_index_is_found_when_its_file_is_signed_anew(server, tmp_path, cache_folder, monkeypatch):
    server.contents.update(write_files(tmp_path))
    for name in ("a.tfrecord", "a.jsonl"):
        KINDS[name](signed(server, name))
        monkeypatch.setenv("HEADRACE_CACHE_BYTES", "0")
        server.requests.clear()
        assert len(KINDS[name](signed(server, name, "secondSecret"))) == 40
        assert {command for command, _, _ in server.requests} == {"HEAD"}
        monkeypatch.delenv("HEADRACE_CACHE_BYTES")
    for folder in ("tfrecord", "lines"):
        (index,) = (cache_folder.parent / folder).iterdir()
        assert stat.S_IMODE(index.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(index.stat().st_mode) == 0o600


def test_what_selects_an_object_tells_it_from_others(server):
    one, other = some_bytes(20_000), some_bytes(20_000, seed=1)
    server.contents |= {"get?id=1": one, "get?id=2": other}
    sources = [FixedRecords(signed(server, f"get?id={number}")) for number in (1, 2)]
    assert [b"".join(MapDataset.source(source)) for source in sources] == [one, other]
    iterator = iter(loader(sources[0]))
    state = iterator.get_state()
    assert "?…#" in json.loads(state)["data_source"]
    with pytest.raises(ValueError, match="data_source differs"):
        iter(loader(sources[1])).set_state(state)


@pytest.mark.parametrize("version", [None, "mtime=5", "Last-Modified=today"])
def test_objects_whose_version_is_no_checksum_are_told_apart_by_all_that_may_select(version):
    seen = remote.Seen(10, version or "")
    keys = {seen.key(f"https://host/get?key={name}") for name in "ab"}
    assert len(keys) == 2
    assert len({remote.Seen(10, "ETag=1").key(f"https://host/get?key={name}") for name in "ab"}) == 1
    assert seen.key(Address("s3://a/b", endpoint_url="http://x")) != seen.key(
        Address("s3://a/b", endpoint_url="http://y")
    )
    assert seen.key(Address("s3://a/b", key="x")) == seen.key(Address("s3://a/b", key="y"))


def test_presigned_objects_of_s3(bucket, cache_folder):
    content = some_bytes(50_000)
    bucket.put_object(Bucket="data", Key="signed.bin", Body=content)

    def sign(seconds):
        return bucket.generate_presigned_url("get_object", {"Bucket": "data", "Key": "signed.bin"}, ExpiresIn=seconds)

    first, second = sign(1000), sign(2000)
    assert first != second
    assert "Signature" in first
    source = FixedRecords(first)
    iterator = iter(loader(source))
    before = [next(iterator) for _ in range(20)]
    state = iterator.get_state()
    iterator.close()
    assert "Signature" not in state.decode() + repr(MapDataset.source(source))
    again = iter(loader(FixedRecords(second)))
    again.set_state(state)
    assert sorted([*before, *again]) == sorted(content[i : i + 1000] for i in range(0, 50_000, 1000))
    assert len([path for path in cache_folder.iterdir() if path.is_dir()]) == 1  # one object, whatever its address
    with pytest.raises(FileNotFoundError) as caught:
        files.open_file(first.replace("signed.bin", "missing.bin"))
    assert "Signature" not in shown(caught.value)


def test_options_with_keys_are_not_shown(monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    path = Address("s3://data/a", key="firstSecret", secret="secondSecret", endpoint_url="http://127.0.0.1:9")
    with pytest.raises(RemoteError) as caught:
        files.open_file(path)
    assert not shows(shown(caught.value) + repr(path))

    def fails():
        raise ValueError("no access for firstSecret")

    with pytest.raises(RemoteError, match="no access for …") as caught:
        remote.with_retries(fails, path, "Looking at")
    assert not shows(shown(caught.value))


def test_a_store_that_its_library_opens_shows_no_secret(server):
    pytest.importorskip("zarr")
    with pytest.raises((HeadraceError, OSError)) as caught:
        ZarrDataSource(signed(server, "a.zarr", "wrongSecret"))
    assert not shows(shown(caught.value))


def test_a_conversion_that_may_go_on_later_notes_no_secret(server, tmp_path):
    server.contents.update(write_files(tmp_path))
    notes = []
    for token in SECRETS[:2]:
        parser = argparse.ArgumentParser()
        convert.add_arguments(parser)
        notes.append(convert._identity(parser.parse_args([signed(server, "a.jsonl", token), "a.parquet"]), {}))
    assert not shows(notes[0])
    assert notes[0] == notes[1]


def test_an_address_that_is_written_to_is_not_shown(tmp_path, capsys):
    with pytest.raises(ValueError, match="Only local files can be written") as caught:
        write_tfrecord([b"a"], "https://me:pa55word@host/a.tfrecord")
    assert not shows(shown(caught.value))
    assert __main__.main(["convert", "postgres://me:pa55word@host/a?x=firstSecret", str(tmp_path / "a.csv")]) == 1
    assert not shows(capsys.readouterr().err)


def test_connection_strings_of_databases_are_not_shown():
    def connect():
        raise RuntimeError('invalid dsn "host=db password=pa55word" for postgresql://me:firstSecret@db/x')

    source = SqlDataSource(connect, "SELECT * FROM dblink('host=db password=secondSecret')", key="id")
    with pytest.raises(RemoteError, match="RuntimeError: invalid dsn") as caught:
        len(source)
    assert not shows(shown(caught.value) + repr(source))
    with pytest.raises(ValueError, match="only local files") as caught:
        SqlDataSource("postgresql://me:pa55word@db/x", "SELECT 1", key="id")
    assert not shows(shown(caught.value))
    with pytest.raises(ValueError, match="got dict") as caught:
        SqlDataSource({"host": "db", "pw": "pa55word"}, "SELECT 1", key="id")
    assert not shows(shown(caught.value))


def test_array_records_behind_signed_addresses(server, tmp_path):
    pytest.importorskip("array_record")
    from headrace.sources import ArrayRecordDataSource

    write_array_record([b"%d" % i for i in range(10)], tmp_path / "a.array_record")
    server.contents["a.array_record"] = (tmp_path / "a.array_record").read_bytes()
    one, other = (ArrayRecordDataSource(signed(server, "a.array_record", token)) for token in SECRETS[:2])
    assert repr(one) == repr(other)
    assert list(one) == list(other)
    server.contents["a.array_record"] = b"damaged" * 1000
    with pytest.raises((HeadraceError, OSError)) as caught:
        list(ArrayRecordDataSource(signed(server, "a.array_record")))
    assert not shows(shown(caught.value))
