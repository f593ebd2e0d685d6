"""Datasets in notebooks, and their first elements: cheap, without workers, and whatever fails is shown as text."""

import html
import os
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import headrace
from headrace import DataLoader, IterDataset, MapDataset, SequentialSampler, load
from headrace.insight.show import preview
from tests.support.proc import until, workers_of


def words(ds) -> str:
    """What a reader of the HTML sees."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", ds._repr_html_())))


def double(x):
    return x * 2


def fail(x):
    raise ValueError("<b>no</b>")


def test_a_dataset_shows_its_chain_length_spec_and_first_element():
    ds = MapDataset.source({"image": np.zeros((20, 8, 8), np.uint8), "label": np.arange(20)}).shuffle(seed=3).batch(4)
    text = words(ds)
    assert "MapDataset , 5 elements" in text
    assert ".shuffle(seed=3) test_datasets.py:" in text
    assert "Element spec: {image: uint8[4, 8, 8], label: int64[4]}" in text
    assert f"label int64[4] {' '.join(map(str, ds[0]['label']))}" in text
    assert ds._repr_html_().count("<img") == 4


def test_functions_are_named_by_file_and_line():
    assert f".map(double at test_datasets.py:{double.__code__.co_firstlineno})" in words(
        MapDataset.range(3).map(double)
    )


@pytest.mark.parametrize(
    ("ds", "length"),
    [
        (MapDataset.range(1), "1 element "),
        (MapDataset.range(12345).to_iter_dataset(), "12,345 elements"),
        (MapDataset.range(3).repeat(), "endless"),
        (MapDataset.range(3).to_iter_dataset().repeat(), "endless"),
        (MapDataset.range(3).to_iter_dataset().filter(bool), "of unknown length without reading data"),
    ],
)
def test_a_dataset_shows_its_length(ds, length):
    assert length in words(ds)


def test_a_row_of_a_table_is_a_row():
    ds = MapDataset.source([{"id": 7, "name": "<a>", "price": 2.5}, {"id": 8, "name": "b", "price": 3.0}])
    assert "id int name str[3] price float 7 <a> 2.5" in words(ds)


def test_a_loader_shows_itself():
    options = {"num_epochs": 2, "shuffle": True, "seed": 5, "transformations": [double], "batch_size": 4}
    text = words(load(range(10), worker_count=3, **options))
    assert "DataLoader , 5 elements" in text
    assert ".shuffle(seed=5)" in text
    assert "double at test_datasets.py" in text
    assert " ".join(map(str, next(iter(load(range(10), **options))))) in text


def test_no_worker_is_started_and_no_thread_is_left(no_other_workers):
    ds = MapDataset.range(10).map(double).to_iter_dataset().prefetch(2).mp_prefetch(2)
    assert "0" in words(ds)
    ds.show(2)
    assert not workers_of(os.getpid())
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("headrace")], "the thread ends")


def test_an_error_is_text():
    text = words(MapDataset.range(3).map(fail))
    assert "First element cannot be computed: ValueError: <b>no</b>, in map(fail at test_datasets.py" in text


def test_a_class_that_lacks_its_methods_is_text():
    class Half(IterDataset):
        pass

    assert words(Half()) == " Half : PipelineError: Half must define `__iter__` to be a dataset. "


def test_an_empty_dataset_says_so():
    assert "First element does not exist: the dataset is empty." in words(MapDataset.range(0))


def limited(ds, seconds):
    return preview.first_element(ds._stream_op, seconds).why_not


@pytest.mark.parametrize(
    "make",
    [
        lambda f: MapDataset.range(10**6).map(f).batch(10**6),
        lambda f: MapDataset.range(10**6).map(f).to_iter_dataset().batch(10**6),
        lambda f: MapDataset.range(10**6).repeat().filter(lambda x: f(x) is None).to_iter_dataset(),
        lambda f: MapDataset.range(10**6).to_iter_dataset().map(f).shuffle(10**6, seed=1).mp_prefetch(2),
        lambda f: MapDataset.range(10**6).map(f).on_error("skip").batch(10**6),
        lambda f: IterDataset.interleave([MapDataset.range(10**6).map(f)] * 2, cycle_length=2).batch(10**6),
    ],
)
def test_the_time_for_the_first_element_is_limited(make):
    calls = []

    def count(x):
        calls.append(x)
        time.sleep(0.001)
        return x

    assert limited(make(count), 0.1) == "takes more than 0.1 s. `show()` computes it."
    until(lambda: not [t for t in threading.enumerate() if t.name == "headrace-show"], "the thread ends")
    assert len(calls) < 10**5  # and nothing goes on


def test_a_call_that_takes_too_long_ends_in_its_thread():
    go_on = threading.Event()
    ds = MapDataset.range(3).map(lambda x: go_on.wait(60))
    assert limited(ds, 0.1).startswith("takes more than")
    go_on.set()


def test_reading_that_may_use_up_elements_is_left_to_show(capsys):
    class Own(IterDataset):
        def __iter__(self):
            return iter(read)

    class Stream:
        reads_in_order = True

        def __init__(self):
            self._elements = iter(range(4))

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return next(self._elements)

    read = iter(range(5))
    assert "reading Own, a user-defined stream, may use up its elements. `show()` computes it." in words(
        Own().map(double)
    )
    assert next(read) == 0
    loader = DataLoader(data_source=Stream(), sampler=SequentialSampler(4))
    assert "the source yields each element only once" in words(loader)
    assert list(loader) == [0, 1, 2, 3]
    Own().show(2)
    assert capsys.readouterr().out == "int  1\nint  2\n"
    loader = DataLoader(data_source=Stream(), sampler=SequentialSampler(4))
    loader.show(1)
    shown = capsys.readouterr().out
    assert (
        shown
        == "int  0\nThe source yields each element only once, so the elements shown here will not be yielded again.\n"
    )
    assert list(loader) == [1, 2, 3]


def test_functions_that_need_worker_init_fn_run_in_workers(capsys):
    def init(index, count):
        os.environ["HEADRACE_TEST_SHOW"] = "here"

    ds = MapDataset.range(4).map(lambda x: os.environ["HEADRACE_TEST_SHOW"]).mp_prefetch(1, worker_init_fn=init)
    assert "functions may need `worker_init_fn`" in words(ds)
    ds.show(1)
    assert capsys.readouterr().out == "str[4]  'here'\n"
    until(lambda: not workers_of(os.getpid()), "workers end")


def test_elements_for_a_device_are_shown_from_the_host(capsys):
    jax = pytest.importorskip("jax")
    ds = headrace.device_put(MapDataset.range(4).to_iter_dataset().batch(2), jax.devices()[0])
    assert "0 1 int64[2]" in words(ds)
    ds.show(1)
    assert capsys.readouterr().out == "int64[2]  0 1\n"


def test_bad_records_are_not_listed_for_a_look(tmp_path, caplog):
    listed = tmp_path / "bad.jsonl"
    ds = MapDataset.range(4).map(lambda x: 1 // x).on_error("skip", quarantine=listed)
    assert "1 int" in words(ds)
    assert not listed.exists()
    assert not caplog.records


def test_show_prints_elements_as_wide_as_the_terminal():
    program = (
        "import numpy as np, headrace\n"
        "ds = headrace.MapDataset.source([{'text': 'word ' * 100, 'x': np.arange(i + 20)} for i in range(9)])\n"
        "ds.show(2)\n"
        "headrace.MapDataset.source([{'id': 1, 'name': 'a'}, {'id': 22, 'name': 'b'}]).show()\n"
    )
    for width in (40, 120):
        done = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"COLUMNS": str(width)}, capture_output=True
        )
        lines = done.stdout.decode().splitlines()
        assert [len(line) == width for line in lines if line.startswith("text")] == [True, True], done.stderr
        assert lines[-3:] == ["id  name", " 1  'a'", "22  'b'"]


def test_show_needs_a_number():
    with pytest.raises(headrace.errors.PipelineError, match="n must be"):
        MapDataset.range(3).show(0)
