"""Files behind addresses: an HTTP server with faults, memory, and archives, all on this machine."""

import contextlib
import gzip
import io
import re
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from headrace import MapDataset, MultiprocessingOptions
from headrace.errors import MissingDependency, PipelineError, RemoteError, install_command
from headrace.storage import files, remote
from tests.support.proc import until

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)
RECORD_BYTES = 1000


def some_bytes(length, seed=0):
    return np.random.default_rng(seed).integers(0, 256, length, np.uint8).tobytes()


class FixedRecords:
    """Records of one length, one after the other in a file."""

    def __init__(self, path):
        (self._path,) = files.expand(path, what="Fixed records")
        self._pool = files.Pool()
        self._length = files.fingerprint(self._path).size // RECORD_BYTES

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        return self._pool.get(self._path).read_many([(int(i) * RECORD_BYTES, RECORD_BYTES) for i in indices])

    def __repr__(self):
        return f"FixedRecords({self._path!r})"


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HEADRACE_CACHE", str(folder))
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.005)
    return folder / "remote"


# ------------------------------------------------------------------------------------------- HTTP server


class Server(ThreadingHTTPServer):
    """Serves bytes by name; `fault(number)` says what is wrong with a request: None, "drop", "half" or a status."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents, self.requests, self.ranges, self.sizes = {}, [], True, True
        self.fault = lambda number: None
        self.lock = threading.Lock()
        self.version = "1"
        self.at_once = self.most_at_once = 0
        self.together = 0  # requests are answered once there were so many at a time

    def url(self, name):
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"

    def handle_error(self, request, client_address):
        pass  # a client that goes away


class Handler(BaseHTTPRequestHandler):
    def do_GET(self, *, body=True):
        server = self.server
        with server.lock:
            fault = server.fault(len(server.requests))
            server.requests.append((self.command, self.path, self.headers.get("Range")))
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            until(lambda: server.most_at_once >= server.together, "requests come one after the other")
            self._answer(server, fault, body)
        finally:
            with server.lock:
                server.at_once -= 1

    def do_HEAD(self):
        self.do_GET(body=False)

    def _answer(self, server, fault, body):
        content = server.contents.get(self.path[1:])
        if fault == "drop":
            self.close_connection = True
            self.connection.close()
            return
        if isinstance(fault, int) or content is None:
            self.send_response(fault or 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if server.ranges else None
        part = content
        if asked:
            part = content[int(asked[1]) : int(asked[2]) + 1 if asked[2] else None]
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {asked[1]}-{int(asked[1]) + len(part) - 1}/{len(content)}")
        if server.sizes:
            self.send_header("Content-Length", str(len(part)))
            if server.version is not None:
                self.send_header("ETag", f'"{server.version}"')
        self.end_headers()
        if body:
            self.wfile.write(part[: len(part) // 2] if fault == "half" else part)
        if fault == "half" or not server.sizes:
            self.close_connection = True

    def log_message(self, format, *args):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(60)


def test_pieces_of_a_file_are_those_of_its_bytes(server):
    content = server.contents["a"] = some_bytes(5_000_001)
    file = files.open_file(server.url("a"))
    assert file.size == len(content)
    rng = np.random.default_rng(1)
    offsets, lengths = rng.integers(0, 5_100_000, 200).tolist(), rng.integers(0, 50_000, 200).tolist()
    ranges = list(zip(offsets, lengths, strict=True))
    ranges += [(0, 0), (0, 5_000_001), (0, 9_000_000), (5_000_001, 10), (remote.BLOCK_BYTES, remote.BLOCK_BYTES)]
    assert file.read_many(ranges) == [content[o : o + n] for o, n in ranges]
    for offset, length in ranges[:20]:
        assert file.read(offset, length) == content[offset : offset + length]
    file.close()


def test_reads_far_apart_stay_bounded_in_memory(server, monkeypatch):
    content = server.contents["a"] = some_bytes(6_000_000)
    monkeypatch.setattr(remote, "GROUP_BLOCKS", 3)
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", "0")
    ranges = [(offset, 10) for offset in range(0, 6_000_000, 100_000)][::-1]
    assert files.open_file(server.url("a")).read_many(ranges) == [content[o : o + n] for o, n in ranges]


def test_neighbours_come_in_one_request_and_requests_at_once(server):
    server.contents["a"] = some_bytes(20_000_000)
    file = files.open_file(server.url("a"))
    server.requests.clear()
    file.read_many([(10, 20), (100, 30), (remote.BLOCK_BYTES, 5)])
    assert [command for command, _, _ in server.requests] == ["GET", "HEAD"]
    server.together, server.most_at_once = 4, 0
    file.read_many([(offset, 10) for offset in range(1_000_000, 20_000_000, 1_000_000)])
    assert server.most_at_once >= 4


def test_the_stream_is_complete_although_connections_drop_and_the_server_is_busy(server):
    content = server.contents["a"] = some_bytes(3_000_000)
    faults = [None, "drop", 503, None, "half", 500, 429, None]
    server.fault = lambda number: faults[number % len(faults)]
    source = FixedRecords(server.url("a"))
    expected = [content[i : i + RECORD_BYTES] for i in range(0, 3_000_000, RECORD_BYTES)]
    assert list(MapDataset.source(source)) == expected
    with files.open_stream(server.url("a")) as stream:
        assert stream.read() == content
    assert len(server.requests) > 10


def test_a_faulty_server_gives_two_workers_the_same_stream(server):
    server.contents["a"] = some_bytes(1_000_000)
    faults = [None, 503, None, "drop", None, "half"]
    server.fault = lambda number: faults[number % len(faults)]
    ds = MapDataset.source(FixedRecords(server.url("a"))).shuffle(seed=3).batch(10).to_iter_dataset()
    inline = [list(batch) for batch in ds]
    with contextlib.closing(iter(ds.mp_prefetch(TWO))) as workers:
        assert [list(batch) for batch in workers] == inline


@pytest.mark.parametrize(("fault", "found"), [(503, "503"), ("drop", "Disconnected"), ("half", "Payload")])
def test_a_fault_that_does_not_pass_is_an_error_with_its_address(server, monkeypatch, fault, found):
    server.contents["a"] = some_bytes(10_000)
    file = files.open_file(server.url("a"))
    server.fault = lambda number: fault
    server.requests.clear()
    with pytest.raises(RemoteError, match=f"Reading bytes 0 to 10000 of {server.url('a')} failed 8 times.*{found}"):
        file.read(0, 10)
    assert remote.ATTEMPTS <= len(server.requests) <= 2 * remote.ATTEMPTS  # aiohttp tries once more of its own accord


def test_a_busy_server_is_not_taken_for_a_missing_file(server):
    server.contents["a"] = b"abc"
    server.fault = lambda number: 503 if number < 6 else None
    assert files.expand(server.url("a"), what="Files") == [server.url("a")]


def test_a_missing_file_is_known_at_once_and_all_are_named(server):
    server.contents["a"] = b"abc"
    paths = [server.url("a"), server.url("b"), server.url("c")]
    with pytest.raises(FileNotFoundError, match=f"2 of 3 paths of Files match no file: {paths[1]}, {paths[2]}"):
        files.expand(paths, what="Files")
    assert len(server.requests) <= 5
    with pytest.raises(FileNotFoundError, match="does not exist"):
        files.open_file(server.url("b"))


def test_a_file_that_vanishes_is_an_error_with_its_address(server):
    server.contents["a"] = some_bytes(10_000)
    file = files.open_file(server.url("a"))
    del server.contents["a"]
    with pytest.raises(FileNotFoundError, match=server.url("a")):
        file.read(0, 10)


def test_what_is_forbidden_is_an_error_at_once(server):
    server.contents["a"] = some_bytes(10_000)
    file = files.open_file(server.url("a"))
    server.requests.clear()
    server.fault = lambda number: 403
    with pytest.raises(RemoteError, match="failed with .*403.*headrace.sources.Address"):
        file.read(0, 10)
    assert [command for command, _, _ in server.requests] == ["GET", "HEAD", "GET"]
    with pytest.raises(RemoteError, match="Looking at .* failed with .*403"):
        files.expand(server.url("a"), what="Files")


@pytest.mark.parametrize("sizes", [True, False])
@pytest.mark.parametrize("cache_bytes", ["0", "100000000"])
def test_a_server_without_ranges_or_sizes_is_read_as_a_whole(server, monkeypatch, sizes, cache_bytes):
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", cache_bytes)
    server.ranges, server.sizes = False, sizes
    content = server.contents["a"] = some_bytes(1_000_000)
    file = files.open_file(server.url("a"))
    assert file.read_many([(10, 20), (700_000, 400_000)]) == [content[10:30], content[700_000:]]
    assert file.size == files.fingerprint(server.url("a")).size == 1_000_000
    file.close()


def test_an_empty_file_is_empty(server):
    server.contents["a"] = b""
    assert files.open_file(server.url("a")).read(0, 10) == b""
    with files.open_stream(server.url("a")) as stream:
        assert stream.read() == b""


def test_threads_read_one_file_at_once(server):
    content = server.contents["a"] = some_bytes(4_000_000)
    file = files.open_file(server.url("a"))
    offsets = np.random.default_rng(0).integers(0, 4_000_000, 200).tolist()
    with ThreadPoolExecutor(8) as pool:
        pieces = list(pool.map(lambda offset: file.read(offset, 5000), offsets))
    assert pieces == [content[offset : offset + 5000] for offset in offsets]


# ----------------------------------------------------------------------------------------------- streams


def test_a_stream_reads_lines_seeks_and_decompresses(server):
    text = b"".join(b"line %d\n" % i for i in range(100_000))
    server.contents["a"], server.contents["a.gz"] = text, gzip.compress(text)
    with files.open_stream(server.url("a")) as stream:
        assert stream.readline() == b"line 0\n"
        stream.seek(-8, io.SEEK_END)
        assert stream.read() == text[-8:]
        stream.seek(1000)
        assert (stream.read(5), stream.tell()) == (text[1000:1005], 1005)
    with files.open_stream(server.url("a.gz")) as stream, gzip.open(stream) as unzipped:
        assert unzipped.read() == text


def test_the_first_bytes_of_a_stream_fetch_little(server):
    server.contents["a"] = some_bytes(20_000_000)
    with files.open_stream(server.url("a")) as stream:
        server.requests.clear()
        stream.read(10)
        spans = [span for command, _, span in server.requests if command == "GET"]
        assert spans == [f"bytes=0-{remote.BLOCK_BYTES - 1}"]


# --------------------------------------------------------------------------------------- other protocols


def test_patterns_of_a_web_server_are_those_of_its_links(server):
    server.contents["dir/"] = "".join(f'<a href="{name}">{name}</a>' for name in ("b.bin", "a.bin", "c.txt")).encode()
    server.contents["dir/a.bin"], server.contents["dir/b.bin"] = b"a", b"b"
    found = files.expand(server.url("dir/*.bin"), what="Files")
    assert [files.open_file(path).read(0, 9) for path in found] == [b"a", b"b"]


def test_memory_and_patterns():
    fs = fsspec.filesystem("memory")
    for name in ("b 2.bin", "a 1.bin", "ünï-字.bin", "other.txt"):
        fs.pipe(f"/headrace-test/{name}", name.encode())
    try:
        found = files.expand("memory://headrace-test/*.bin", what="Files")
        assert [path.rsplit("/", 1)[1] for path in found] == ["a 1.bin", "b 2.bin", "ünï-字.bin"]
        assert [files.open_file(path).read(0, 99).decode() for path in found] == ["a 1.bin", "b 2.bin", "ünï-字.bin"]
        with pytest.raises(FileNotFoundError, match="No file matches memory://headrace-test/\\*.csv"):
            files.expand("memory://headrace-test/*.csv", what="Files")
    finally:
        fs.rm("/headrace-test", recursive=True)


def test_files_inside_archives_also_far_away(server, tmp_path):
    contents = {"a/1.bin": some_bytes(600_000), "a/2.bin": bytes(700_000)}
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    server.contents["x.zip"] = (tmp_path / "x.zip").read_bytes()
    for outer in (f"{tmp_path}/x.zip", server.url("x.zip")):
        found = files.expand(f"zip://a/*.bin::{outer}", what="Files")
        assert found == [f"zip://a/1.bin::{outer}", f"zip://a/2.bin::{outer}"]
        for path, content in zip(found, contents.values(), strict=True):
            file = files.open_file(path)
            assert (file.size, file.read(500_000, 1_000_000)) == (len(content), content[500_000:])
            file.close()


def test_an_unknown_protocol_and_a_missing_driver_say_so():
    with pytest.raises(PipelineError, match="nosuch://a is not an address.*Is its protocol spelled correctly"):
        files.open_file("nosuch://a")
    try:
        import gcsfs  # noqa: F401
    except ImportError:
        with pytest.raises(MissingDependency, match="gs://b/a needs a driver.*" + re.escape(install_command("cloud"))):
            files.open_file("gs://b/a")
