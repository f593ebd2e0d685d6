"""The report of a run: a file that needs nothing else, and says what the numbers say."""

import json
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest

from headrace import IterDataset, MapDataset, ReadOptions, WeightSchedule
from headrace.engine.plan import Plan
from headrace.insight.report import MOST_PARTS, Graph, Lengths, on_nodes, plain_numbers, report_html, shares_of
from headrace.insight.view.lengths import measure
from headrace.insight.view.outputs import Streams
from tests.insight.view.hostile import HOSTILE

pytest.importorskip("jinja2")


class Page(HTMLParser):
    """The elements of a page and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = Counter(), set(), ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def slow(x):
    return sum(range(2000)) * 0 + x


def run(ds, count=None):
    """The statistics of a run, and its position."""
    with iter(ds) as iterator:
        for i, _ in enumerate(iterator, start=1):
            if i == count:
                break
        return iterator.stats(), iterator._iteration.position()


STATS = {  # as `Stats.as_dict()` gives them
    "elements": 1000,
    "bytes": 64_000,
    "wall_s": 10.0,
    "next_s": 8.0,
    "waited_s": 6.0,
    "consumer_s": 2.0,
    "rate": 100.0,
    "stages": [
        {
            "stage": "batch(4)",
            "where": "workers",
            "elements": 1000,
            "bytes": 64_000,
            "left_out": 0,
            "busy_s": 12.0,
            "waited_s": 6.0,
            "cpu_s": 11.0,
            "workers": 3,
            "buffered": 0.25,
        }
    ],
    "operations": [
        {"operation": "map(str)", "where": "workers", "elements": 4000, "seconds": 9.0},
        {"operation": "batch(4)", "where": "workers", "elements": 1000, "seconds": 3.0},
    ],
    "bad_records": {},
    "verdict": "The pipeline limits the run. Most of its time goes to map(str).",
}


def test_numbers_are_put_on_the_nodes():
    ds = MapDataset.range(100).map(str).batch(4)
    numbers = plain_numbers(STATS | {"recent": STATS | {"elements": 50, "wall_s": 0.5}})
    graph = Graph(Plan(ds._op))
    notes = {node.label: on_nodes(graph, numbers).get(node.number) for node in graph.nodes}
    assert notes == {
        "range(100)": None,
        "map(str)": {"text": "4,000 elements · 8,000/s · 2.25 ms each", "where": "workers", "share": 0.75},
        "batch(4)": {
            "text": "1,000 elements · 2,000/s · 3 ms each · buffer 25% full",
            "where": "workers (3)",
            "share": 0.25,
        },
    }


def test_operations_that_look_alike_have_their_numbers_together():
    ds = MapDataset.mix([MapDataset.range(9).map(str), MapDataset.range(9, 18).map(str)])
    stages = [{"stage": "map(str)", "where": "consumer", "elements": n, "busy_s": 1.0} for n in (3, 4)]
    numbers = plain_numbers({"elements": 7, "wall_s": 1.0, "stages": stages})
    notes = on_nodes(Graph(Plan(ds._op)), numbers)
    assert [note["text"] for note in notes.values()] == ["7 elements · 7/s · 286 ms each · sum of 2 operations"] * 2


def test_a_report_of_a_real_run():
    ds = MapDataset.range(400).shuffle(seed=9).map(slow).to_iter_dataset(ReadOptions(num_threads=0)).batch(4)
    stats, position = run(ds)
    page = Page(report_html(stats, Plan(ds._op), position, title="digits", rates=[1.0, 2.0], span_s=3.0))
    assert "digits" in page.text
    assert "shuffle(seed=9)" in page.text
    assert "test_report.py:" in page.text
    assert "seed 9" in page.text
    assert f"{stats.operations[0].elements} elements" in page.text  # about 400, as far as some of them tell
    assert page.tags["li"] == 5  # a card for each operation
    assert page.tags["svg"] == 1
    assert not page.tags["script"]
    assert not page.attributes & {"src", "href", "onload"}  # it needs nothing else, and runs nothing


def test_statistics_save_themselves(tmp_path):
    parts = {HOSTILE: MapDataset.range(40).map(slow).to_iter_dataset(), "b": MapDataset.range(40).to_iter_dataset()}
    with iter(IterDataset.mix(parts, {HOSTILE: 1, "b": 3})) as iterator:
        for _ in range(20):
            next(iterator)
        stats = iterator.stats()
    stats.save(tmp_path / "report.html", title="a mix")
    page = Page((tmp_path / "report.html").read_text())
    for expected in ("a mix", stats.verdict, "map(slow", HOSTILE, "test_report.py:"):
        assert expected in page.text
    assert not page.tags["script"]


def test_a_report_shows_the_verdict_and_stages():
    page = Page(report_html(STATS))
    for expected in (STATS["verdict"], "100.0", "1,000", "batch(4)", "workers (3)", "12.00 s", "25%"):
        assert expected in page.text


def test_texts_are_never_markup():
    harmless = {"title": "a", "feature": "b", "names": {"c": 1, "d": 2}}
    found = []
    for texts in (harmless, {"title": HOSTILE, "feature": HOSTILE, "names": {HOSTILE: 1, "d": 2}}):
        parts = {name: MapDataset.range(20).to_iter_dataset() for name in texts["names"]}
        ds = IterDataset.mix(parts, texts["names"]).map(slow)
        _, position = run(ds, 12)
        stats = json.loads(json.dumps(STATS).replace("map(str)", json.dumps(texts["title"])[1:-1]))
        stats["verdict"] = texts["title"]
        lengths = [Lengths(texts["title"], texts["title"], texts["feature"], np.arange(1, 9), 5, 0.5)]
        found.append(Page(report_html(stats, Plan(ds._op), position, title=texts["title"], lengths=lengths)))
    assert found[0].tags == found[1].tags
    assert found[0].attributes == found[1].attributes
    assert HOSTILE in found[1].text


def test_very_many_parts_and_operations():
    parts = [MapDataset.range(5) for _ in range(1000)]
    ds = MapDataset.concatenate(parts)
    for _ in range(500):
        ds = ds.map(str)
    page = Page(report_html(STATS, Plan(ds._op)))
    assert "and 992 more" in page.text
    assert "400 operations are not shown" in page.text
    assert page.tags["li"] == 101 + MOST_PARTS


# -------------------------------------------------------------------------------------------- mixtures


def numbered(part, count=4000):
    """Elements that say which part they are of."""
    return MapDataset.range(count).map(lambda _: part)


MIXES = {
    "streams": lambda: IterDataset.mix(
        {"a": numbered(0).to_iter_dataset(), "b": numbered(1).to_iter_dataset()}, {"a": 1, "b": 4}
    ),
    "random access": lambda: MapDataset.mix([numbered(0), numbered(1)], [3, 1]).to_iter_dataset(),
    "shuffled": lambda: MapDataset.mix([numbered(0), numbered(1)], [3, 1]).shuffle(seed=5).to_iter_dataset(),
    "a schedule": lambda: IterDataset.mix(
        [numbered(0).to_iter_dataset(), numbered(1).to_iter_dataset()], WeightSchedule({0: [1, 0], 500: [1, 1]})
    ),
}


@pytest.mark.parametrize("name", MIXES)
def test_shares_are_those_of_the_elements(name):
    ds = MIXES[name]()
    with iter(ds) as iterator:
        which = np.array([next(iterator) for _ in range(1000)])
        (found,) = shares_of(ds._op, iterator._iteration.position())
    assert found.count == 1000
    assert found.whole == pytest.approx([1 - which.mean(), which.mean()], abs=0.01)
    expected = [np.mean(stretch) for stretch in np.array_split(which, len(found.over_time))]
    assert found.over_time[:, 1] == pytest.approx(np.array(expected), abs=0.1)  # within one element of its share


def test_shares_of_a_mix_in_a_mix_and_after_batches():
    inner = IterDataset.mix({"x": numbered(0).to_iter_dataset(), "y": numbered(1).to_iter_dataset()})
    ds = IterDataset.mix({"in": inner, "out": numbered(2).to_iter_dataset()}, {"in": 3, "out": 1}).batch(8)
    _, position = run(ds, 50)
    outer, within = shares_of(ds._op, position)
    assert (outer.names, outer.count, within.names, within.count) == (("in", "out"), 400, ("x", "y"), 300)
    assert outer.whole == pytest.approx([0.75, 0.25], abs=0.01)


def test_shares_of_very_many_parts_and_of_a_long_run():
    ds = MapDataset.mix([numbered(i, 10**9) for i in range(50)]).to_iter_dataset()
    (found,) = shares_of(ds._op, 10**8)
    assert found.count == 10**8
    assert found.names[-1] == "45 others"
    assert found.whole == pytest.approx([0.02] * 5 + [0.9], abs=0.01)


# -------------------------------------------------------------------------------------------- lengths


def sequences():
    return MapDataset.range(300).map(lambda i: {"x": np.ones(i % 10 + 1), "name": "a" * (i % 3)}).to_iter_dataset()


def test_lengths_and_padding_of_packing():
    ds = sequences().pack({"x": 16}, num_packing_bins=4, drop_other_features=True).batch(2)
    (found,) = measure(ds._op, Streams(ds._op))
    assert (found.feature, found.row_length, len(found.values)) == ("x", 16, 300)
    assert found.values.tolist() == [i % 10 + 1 for i in range(300)]
    rows = np.concatenate([batch["x_segment_ids"] for batch in ds])
    assert found.padding == pytest.approx(np.mean(rows == 0), abs=0.02)
    counts, top = found.histogram()
    assert (counts.sum(), top >= 16) == (300, True)


def test_lengths_and_padding_of_padded_batches():
    ds = sequences().map(lambda e: {"x": e["x"]}).padded_batch(6, boundaries=(4, 8), length_fn=lambda e: len(e["x"]))
    (found,) = measure(ds._op, Streams(ds._op))
    cells = sum(batch["x"].size for batch in ds)
    assert found.padding == pytest.approx(1 - 5.5 * 300 / cells, abs=0.001)


def test_lengths_of_elements_that_differ():
    found = measure(sequences()._op, Streams(sequences()._op))
    assert {each.feature: int(each.values.max()) for each in found} == {"x": 10, "name": 2}
    plain = MapDataset.range(10).map(lambda i: np.ones(4))
    assert measure(plain._op, Streams(plain._op)) == []
