"""What an output was made of: each pipeline carries the numbers of its records, which tell."""

import numpy as np
import pytest

from headrace import DataLoader, IterDataset, MapDataset, samplers, transforms
from headrace.errors import PipelineError
from headrace.insight.view import outputs
from headrace.insight.view.lineage import MOST
from headrace.insight.view.trace import Tracer


def numbers():
    """Elements that are their records' indices."""
    return MapDataset.range(100)


def shuffled():
    return numbers().shuffle(seed=1).map(lambda x: x).to_iter_dataset()


def sequences():
    """Sequences of different lengths whose values are their records' indices, from 1 on."""
    return MapDataset.range(1, 90).map(lambda i: {"x": np.full(i * 7 % 9 + 1, i)}).to_iter_dataset()


PIPELINES = {
    "random access": lambda: numbers().shuffle(seed=1).map(lambda x: x),
    "batches of random access": lambda: numbers().shuffle(seed=1).batch(3),
    "slices": lambda: numbers().shuffle(seed=1)[10:60:3],
    "repeat": lambda: numbers().take(7).shuffle(seed=1).repeat(4),
    "flat map of random access": lambda: numbers().flat_map(lambda x: [x, x], max_fan_out=2),
    "stream": shuffled,
    "filter": lambda: shuffled().filter(lambda x: x % 3),
    "filter, then batch": lambda: shuffled().filter(lambda x: x % 3).batch(3),
    "filter before the stream": lambda: numbers().filter(lambda x: x % 3).to_iter_dataset().map(lambda x: x),
    "counted": lambda: shuffled().filter(lambda x: x % 5).map_with_index(lambda i, x: x),
    "random": lambda: shuffled().random_map(lambda x, rng: x, seed=3),
    "window shuffle": lambda: shuffled().window_shuffle(9, seed=2),
    "window shuffle after filter": lambda: shuffled().filter(lambda x: x % 3).window_shuffle(9, seed=2).batch(2),
    "buffer shuffle": lambda: shuffled().shuffle(buffer_size=9, seed=2),
    "flat map": lambda: shuffled().flat_map(lambda x: [x] * (x % 4)),
    "take and skip": lambda: shuffled().skip(3).take(40),
    "stream repeated": lambda: shuffled().take(6).repeat(3),
    "mix": lambda: IterDataset.mix([shuffled(), shuffled().filter(lambda x: x % 2)], [1, 3]),
    "mix, then filter": lambda: IterDataset.mix({"a": shuffled(), "b": shuffled()}).filter(lambda x: x % 3).batch(3),
    "mix of random access": lambda: MapDataset.mix([numbers().shuffle(seed=4), numbers()], [2, 1]).batch(2),
    "concatenate": lambda: MapDataset.concatenate([numbers().shuffle(seed=4).take(5), numbers()]),
    "zip": lambda: IterDataset.zip([shuffled(), shuffled().filter(lambda x: x % 2)], strict=False),
    "interleave": lambda: IterDataset.interleave([shuffled().take(n) for n in (9, 2, 5, 20)], cycle_length=2),
    "workers and threads": lambda: shuffled().filter(lambda x: x % 3).batch(2).prefetch(2).mp_prefetch(2),
    "first fit": lambda: sequences().pack({"x": 12}, num_packing_bins=3),
    "best fit": lambda: sequences().pack({"x": 12}, strategy="best_fit", num_packing_bins=3),
    "concatenate, then split": lambda: sequences().pack({"x": 12}, strategy="concat_split"),
    "padded": lambda: sequences().padded_batch(3, boundaries=(4, 8), length_fn=lambda e: len(e["x"])),
}


def records_of(element):
    """The numbers that an element carries; rows of sequences carry those of their records and a 1."""
    if isinstance(element, dict):
        return {int(x) - 1 for x in np.ravel(element["x"]) if x}
    return set(map(int, np.ravel(element)))


@pytest.mark.parametrize("name", PIPELINES)
def test_the_records_shown_are_those_of_the_output(name):
    ds = PIPELINES[name]()
    tracer = Tracer(ds._op)
    found = list(ds)
    for number in [0, 1, 2, 7, 12, len(found) - 1]:
        trace = tracer.trace(number)
        assert records_of(trace.steps[0].items[0].element) == records_of(found[number])
        assert not any("cannot be shown" in step.note for step in trace.steps), [step.note for step in trace.steps]
        shown, expected = {origin.index for origin in trace.origins}, records_of(found[number])
        kept = {index for index in shown if index in expected}  # filters also show what they leave out
        assert kept == expected or (len(kept) >= MOST and kept < expected)
        if not name.startswith(("filter", "mix", "window shuffle after", "zip", "counted", "workers")):
            assert shown <= expected


def test_batches_cut_anew_show_all_batches_that_they_have_rows_of():
    ds = shuffled().batch(4).rebatch(3)
    for number, element in enumerate(ds):
        batches = Tracer(ds._op).trace(number).steps[1].items
        assert records_of(element) <= records_of(np.concatenate([item.element for item in batches]))
        assert all(records_of(item.element) & records_of(element) for item in batches)


def test_every_operation_has_a_step():
    ds = numbers().seed(5).shuffle().map(lambda x: x + 0).to_iter_dataset().filter(lambda x: x % 3).batch(2)
    trace = Tracer(ds._op).trace(3)
    names = [step.op.name for step in trace.steps]
    assert names == ["batch", "filter", "to_iter_dataset", "map", "shuffle", "seed", "source"]


def test_a_filter_shows_what_it_leaves_out():
    ds = numbers().to_iter_dataset().filter(lambda x: x % 4 == 3)
    before = Tracer(ds._op).trace(2).steps[1]
    assert [item.element for item in before.items] == [8, 9, 10, 11]
    assert before.note == "3 dropped before the last"


def test_an_origin_has_file_record_index_and_epoch(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"n": "{name}{i}"}}\n' for i in range(5)))
    from headrace.sources import JsonLinesDataSource

    source = JsonLinesDataSource([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    ds = MapDataset.source(source).repeat(2).to_iter_dataset()
    (origin,) = Tracer(ds._op).trace(17).origins
    assert (origin.file, origin.record, origin.index, origin.epoch) == (str(tmp_path / "b.jsonl"), 2, 7, 1)


@pytest.mark.parametrize("as_stream", [False, True])
def test_an_error_is_shown_where_it_comes(as_stream):
    ds = numbers().map(lambda x: 1 // (x - 3)).map(str)
    ds = ds.to_iter_dataset().map(len) if as_stream else ds
    trace = Tracer(ds._op).trace(3)
    errors = [step.op.name for step in trace.steps if step.items[0].error]
    assert errors == (["map"] * 3 if as_stream else ["map"] * 2)
    assert "ZeroDivisionError" in trace.steps[0].items[0].error
    assert trace.steps[-1].items[0].element == 3


def test_what_is_left_out_by_a_policy_is_left_out_here(tmp_path):
    bad = tmp_path / "bad.jsonl"
    ds = numbers().map(lambda x: 1 // (x - 3) + x).to_iter_dataset()
    ds = ds.on_error("skip", max_errors=None, max_ratio=None, quarantine=bad).batch(2)
    trace = Tracer(ds._op).trace(1)
    assert trace.steps[0].items[0].element.tolist() == list(ds)[1].tolist()
    assert [origin.index for origin in trace.origins] == [2, 4]
    assert bad.read_text().count("\n") == 1  # of `list(ds)` alone


def test_an_output_that_is_not_there():
    tracer = Tracer(shuffled().filter(lambda x: x % 2)._op)
    with pytest.raises(PipelineError, match="There is no element 1,000: the pipeline has 50"):
        tracer.trace(1000)


def test_a_search_begins_at_the_nearest_place_that_is_known():
    calls = []
    ds = MapDataset.range(3000).to_iter_dataset().map(lambda x: calls.append(x) or x).filter(lambda x: x % 2)
    tracer = Tracer(ds._op)
    with iter(ds) as iterator:
        for _ in range(1000):
            next(iterator)
        tracer.remember(1000, iterator._iteration.position())
    calls.clear()
    assert tracer.trace(1001).steps[0].items[0].element == 2003
    assert min(calls) == 2000
    calls.clear()
    assert tracer.trace(500).steps[0].items[0].element == 1001
    assert tracer.trace(501).steps[0].items[0].element == 1003
    assert calls.count(0) == 1  # the second search has gone on from the first


def test_a_search_that_takes_too_long_says_how_far_it_came(monkeypatch):
    monkeypatch.setattr(outputs, "SEARCH_S", 0.0)
    tracer = Tracer(MapDataset.range(3000).to_iter_dataset().filter(lambda x: True)._op)
    with pytest.raises(
        PipelineError, match=r"Element 2,500 is too far away: in 0 s, the search got from element 0 to 1\. Ask again"
    ):
        tracer.trace(2500)
    with pytest.raises(PipelineError, match=r"got from element 1 to 2\."):
        tracer.trace(2500)


def test_only_so_many_places_are_kept(monkeypatch):
    monkeypatch.setattr(outputs, "MOST_KNOWN", 10)
    finder = outputs.Finder(numbers().to_iter_dataset()._op, None)
    for count in range(1000):
        finder.remember(count, count)
    known = [count for count, _ in finder._known]
    assert known[0] == 0
    assert len(known) <= 11
    assert known == sorted(set(known))


def test_far_elements_of_plain_streams_are_found_at_once():
    calls = []
    ds = MapDataset.range(10**9).shuffle(seed=1).map(lambda x: calls.append(x) or x).to_iter_dataset().batch(2)
    trace = Tracer(ds._op).trace(400_000_000)
    assert trace.steps[0].items[0].element.tolist() == [origin.index for origin in trace.origins]
    assert len(calls) < 10_000


def test_a_loader():
    loader = DataLoader(
        data_source=range(50),
        sampler=samplers.IndexSampler(50, shuffle=True, num_epochs=2, seed=3),
        operations=[lambda x: x, transforms.Batch(4)],
        worker_count=2,
    )
    trace = Tracer(loader.dataset._op).trace(5)
    assert [origin.index for origin in trace.origins] == list(loader)[5].tolist()
