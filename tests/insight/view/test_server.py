"""The page's server: who may ask, what it answers, and that nothing is left of it."""

import http.client
import json
import logging
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from headrace import DataLoader, IterDataset, MapDataset, samplers
from headrace.insight.view import runner
from tests.insight.view.hostile import HOSTILE
from tests.insight.view.test_report import Page
from tests.support.proc import WAIT_S, nothing_left, until

for library in ("starlette", "uvicorn", "jinja2"):
    pytest.importorskip(library)


def endless():
    return MapDataset.range(10).shuffle(seed=3).map(lambda x: {"x": np.full(3, x)}).repeat().to_iter_dataset().batch(2)


@pytest.fixture
def view():
    with endless().view(open_browser=False) as shown:
        yield shown


def get(url):
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return answer.read().decode()


def answer_to(url, path=None, *, method="GET", **headers):
    """The status, headers and text of an answer, whatever the request."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=WAIT_S)
    try:
        connection.putrequest(method, parts.path if path is None else path, skip_host="host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


# -------------------------------------------------------------------------------------------- who may ask


def test_only_the_address_with_the_token_leads_in(view):
    token = urlsplit(view.url).path.strip("/")
    assert len(token) >= 32
    assert answer_to(view.url)[0] == 200
    for path in ("/", "/live", "/x/live", f"/{token[:-1]}/live", f"/{token}x/", f"//{token}/", f"/live?token={token}"):
        status, _, text = answer_to(view.url, path)
        assert (status, text) == (403, "Forbidden"), path


def test_only_requests_to_this_host_are_answered(view):
    port = urlsplit(view.url).port
    assert answer_to(view.url, host=f"localhost:{port}")[0] == 200
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        f"127.0.0.1:{port + 1}",
        f"127.0.0.1:{port}.evil",
        "",
    ):
        assert answer_to(view.url, host=host)[0] == 403, host


def test_it_listens_on_this_machine_alone(view):
    assert view.url.startswith("http://127.0.0.1:")
    assert view._server._socket.getsockname()[0] == "127.0.0.1"


def test_pages_may_run_no_script_but_their_own(view):
    for path in ("", "live", "elements?number=1", "report.html"):
        _, headers, _ = answer_to(view.url + path, urlsplit(view.url).path + path)
        rules = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == "'self'"
        assert rules["frame-ancestors"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_asking_does_not_change_anything(view):
    assert answer_to(view.url + "pause")[0] == 405


# -------------------------------------------------------------------------------------------- what it answers


def test_numbers_are_live(view):
    def count():
        return int(json.loads(get(view.url + "live"))["count"].replace(",", ""))

    until(lambda: count() > 0, "nothing runs")
    before = count()
    until(lambda: count() > before, "the run does not go on")
    live = json.loads(get(view.url + "live"))
    assert live["state"] == "running"
    assert any("elements" in note["text"] for note in live["nodes"].values())


def test_a_run_can_be_paused(view):
    get(view.url + "live")
    until(lambda: view._shown.runner.state == "running", "it does not run")
    assert answer_to(view.url, urlsplit(view.url).path + "pause", method="POST")[0] == 204
    assert json.loads(get(view.url + "live"))["state"] == "paused"
    until(lambda: len({get(view.url + "live") for _ in range(3)}) == 1, "it goes on")
    assert answer_to(view.url, urlsplit(view.url).path + "run", method="POST")[0] == 204
    assert json.loads(get(view.url + "live"))["state"] == "running"


def test_elements_after_every_operation(view):
    page = Page(get(view.url + "elements?number=7"))
    expected = list(endless().take(8))[7]["x"][:, 0].tolist()
    for row in expected:
        assert f"record {row}, epoch 1" in page.text
    assert "shuffle(seed=3)" in page.text
    assert "Seeds: shuffle 3" in page.text


@pytest.mark.parametrize(("number", "status"), [("-1", 400), ("x", 400), ("1e3", 400), ("<script>", 400)])
def test_numbers_are_checked(view, number, status):
    path = urlsplit(view.url).path + f"elements?number={urllib.parse.quote(number)}"
    found, headers, text = answer_to(view.url, path)
    assert found == status
    assert headers["content-type"].startswith("text/plain")
    assert "The number of an element is 0 or more" in text


def test_the_report_is_that_of_the_run(view):
    until(lambda: json.loads(get(view.url + "live"))["count"] != "0", "nothing runs")
    page = Page(get(view.url + "report.html"))
    assert "shuffle(seed=3)" in page.text
    assert not page.tags["script"]


def test_texts_of_data_are_never_markup():
    def of(text):
        ds = (
            MapDataset.source([{text: text, "label": text, "raw": text.encode()}] * 4)
            .map(lambda e: e)
            .to_iter_dataset()
        )
        with ds.view(title=text, open_browser=False) as shown:
            return [
                Page(get(shown.url + path)) for path in ("", "elements?number=1", "figures", "stages", "report.html")
            ]

    for plain, hostile in zip(of("harmless"), of(HOSTILE), strict=True):
        assert plain.tags == hostile.tags
        assert plain.attributes == hostile.attributes
    assert HOSTILE in of(HOSTILE)[1].text


def test_errors_are_shown():
    def fail(x):
        if x == 5:
            raise ValueError(f"bad {HOSTILE}")
        return x

    ds = MapDataset.range(10).map(fail).to_iter_dataset()
    with ds.view(open_browser=False) as shown:
        get(shown.url + "live")
        until(lambda: shown._shown.runner.state == "failed", "it does not fail")
        assert "ValueError: bad" in json.loads(get(shown.url + "live"))["failure"]
        page = Page(get(shown.url + "elements?number=5"))
        assert f"ValueError: bad {HOSTILE}" in page.text
        status, _, text = answer_to(shown.url, urlsplit(shown.url).path + "elements?number=20")
        assert (status, text) == (404, f"Could not reach element 20: ValueError: bad {HOSTILE}")


def test_a_dataset_of_a_class_of_ones_own():
    class Mine(IterDataset):
        def __iter__(self):
            yield from range(20)

    with Mine().view(open_browser=False) as shown:
        get(shown.url + "live")
        until(lambda: shown._shown.runner.state == "ended", "it does not end")
        assert json.loads(get(shown.url + "live"))["count"] == "20"
        assert "7" in Page(get(shown.url + "elements?number=7")).text


def test_a_finished_run_begins_again():
    with MapDataset.range(30).to_iter_dataset().view(open_browser=False) as shown:
        get(shown.url + "live")
        until(lambda: shown._shown.runner.state == "ended", "it does not end")
        assert json.loads(get(shown.url + "live"))["count"] == "30"
        shown._shown.runner.run()
        until(lambda: shown._shown.runner.state == "ended", "it does not end")


def test_it_rests_when_nobody_looks(monkeypatch):
    monkeypatch.setattr(runner, "IDLE_S", 0.3)
    taken = []
    ds = MapDataset.range(10).repeat().map(lambda x: taken.append(x) or x)
    with ds.view(open_browser=False) as shown:
        get(shown.url)  # the page alone starts nothing
        assert taken == []
        get(shown.url + "live")
        until(lambda: taken, "it does not run")

        def rests():
            count = len(taken)
            time.sleep(0.05)
            return len(taken) == count

        until(rests, "it does not rest")
        count = len(taken)
        get(shown.url + "live")
        until(lambda: len(taken) > count, "it does not go on")


# -------------------------------------------------------------------------------------------- loaders, and the end


def test_a_loader_with_workers_and_nothing_is_left():
    def look():
        loader = DataLoader(
            data_source=range(50),
            sampler=samplers.IndexSampler(50, shuffle=True, seed=3),
            operations=[lambda x: x * 2],
            worker_count=1,
        )
        with loader.view(open_browser=False) as shown:
            until(lambda: json.loads(get(shown.url + "live"))["count"] != "0", "nothing runs")
            assert "record" in get(shown.url + "elements?number=60")
        with pytest.raises(OSError):
            get(shown.url)
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace-view")]

    with nothing_left():
        look()


def test_a_source_that_is_read_once_is_left_alone():
    class Stream:
        reads_in_order = True

        def __init__(self):
            self.read = 0

        def __len__(self):
            return 1000

        def __getitem__(self, _):
            self.read += 1
            return self.read

    source = Stream()
    loader = DataLoader(data_source=source, sampler=samplers.SequentialSampler(1000))
    with loader.view(open_browser=False) as shown:
        status, _, text = answer_to(shown.url, urlsplit(shown.url).path + "elements?number=1")
        assert (status, "yields each element only once" in text) == (404, True)
        get(shown.url + "figures")
        assert source.read == 0


def test_closing_ends_a_function_that_takes_long():
    began, go_on = threading.Event(), threading.Event()

    def wait(x):
        began.set()
        go_on.wait(WAIT_S)
        return x

    shown = MapDataset.range(10).map(wait).to_iter_dataset().view(open_browser=False)
    get(shown.url + "live")
    assert began.wait(WAIT_S)
    threading.Timer(0.5, go_on.set).start()
    shown.close()
    until(lambda: not any(t.name == "headrace-view-run" for t in threading.enumerate()), "the run goes on")


def test_the_code_of_the_document_runs(tmp_path, capsys):
    document = (Path(__file__).resolve().parents[3] / "docs" / "how_to" / "view.md").read_text()
    names = {}
    for block in document.split("```python\n")[1:]:
        exec(block.split("```")[0], names)
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")


def test_the_users_log_files_stay_open(tmp_path):
    handler = logging.FileHandler(tmp_path / "log", mode="w")
    logger = logging.getLogger("tests.insight.view")
    logger.addHandler(handler)
    try:
        with endless().view(open_browser=False) as view:
            get(view.url)
            logger.error("written meanwhile")
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert (tmp_path / "log").read_text() == "written meanwhile\n"


def test_a_view_in_a_notebook(view):
    assert repr(view) == f"<view at {view.url}>"
    assert f'href="{view.url}"' in view._repr_html_()


def test_the_command(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import headrace\n\nds = headrace.MapDataset.range(10).to_iter_dataset()\n")
    command = [sys.executable, "-m", "headrace", "view", f"{path}:ds", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        assert f"{path}:ds" in get(url)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, out, err) == (0, "", "")
