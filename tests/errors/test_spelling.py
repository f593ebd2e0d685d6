"""Misspelled names: errors say which name was meant, once, in every kind of traceback."""

import inspect
import re
import subprocess
import sys
import traceback

import pytest

import headrace
from headrace import MapDataset
from headrace.errors import SpecError
from tests.support.proc import LIMIT_S

DS = MapDataset.range(3)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: DS.suffle, "MapDataset has no attribute 'suffle'. Did you mean `shuffle`?"),
        (
            lambda: DS.to_iter_dataset().mp_prefech,
            "IterDataset has no attribute 'mp_prefech'. Did you mean `mp_prefetch`?",
        ),
        (
            lambda: DS.paded_batch,
            "MapDataset has no attribute 'paded_batch'. Did you mean `padded_batch`? It is a method of IterDataset, to call "
            "after `to_iter_dataset()`.",
        ),
        (
            lambda: DS.to_iter_dataset().shard,
            "IterDataset has no attribute 'shard'. It is a method of MapDataset, to call before `to_iter_dataset()`.",
        ),
        (
            lambda: DS.to_iter_dataset().stats(),
            "IterDataset has no attribute 'stats'. It is a method of iterators: `it = iter(ds)`, then `it.stats(...)`.",
        ),
        (lambda: DS.xyzzy, "MapDataset has no attribute 'xyzzy'"),
        (lambda: DS._suffle, "MapDataset has no attribute '_suffle'"),
        (lambda: headrace.MapDatset, "module 'headrace' has no attribute 'MapDatset'. Did you mean `MapDataset`?"),
        (
            lambda: headrace.sources.ParquetSource,
            "module 'headrace.sources' has no attribute 'ParquetSource'. Did you mean `ParquetDataSource`?",
        ),
    ],
)
def test_the_name_that_was_meant(read, message):
    with pytest.raises(AttributeError) as caught:
        read()
    assert str(caught.value) == message
    shown = "".join(traceback.format_exception_only(caught.value))
    assert shown.strip() == f"AttributeError: {message}"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_keys_that_an_element_has(num_workers):
    ds = (
        MapDataset.source([{"image": 1, "label": 2}])
        .map(lambda element: element["img"])
        .to_iter_dataset()
        .mp_prefetch(num_workers)
    )
    with pytest.raises(KeyError) as caught:
        list(ds)
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"in map\(.*\), element 0 \(pipeline at .*\); the keys there are 'image', 'label'", note)


def test_a_spec_that_is_none_is_no_missing_property():
    class Source(list):
        element_spec = {"a": 1}  # noqa: RUF012

    ds = MapDataset.source(Source([1, 2])).batch(2)
    with pytest.raises(SpecError, match="The shapes and dtypes of batch.* are not known: .*'int' object"):
        ds.element_spec  # noqa: B018


def test_what_a_program_prints():
    program = "from headrace import MapDataset; MapDataset.range(3).suffle(seed=1)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    last = done.stderr.strip().splitlines()[-1]
    assert last == "AttributeError: MapDataset has no attribute 'suffle'. Did you mean `shuffle`?"


def test_datasets_of_ones_own():
    class Numbers(MapDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return index

        def doubled(self):
            return self.map(lambda x: 2 * x)

    with pytest.raises(AttributeError, match="Numbers has no attribute 'dubled'. Did you mean `doubled`?"):
        Numbers().dubled()


STREAM = DS.to_iter_dataset()
LOADER = headrace.load(range(3))


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda: DS.batch(2, drop_last=True), "`drop_remainder=`"),
        (lambda: DS.shuffle(buffer_size=9), r"`ds.shuffle\(n, seed=0\)` for a buffered shuffle of a stream"),
        (lambda: DS.repeat(count=2), r"`ds.repeat\(n\)`"),
        (lambda: DS.cache(filename="x"), r"`ds.cache\(path\)`"),
        (lambda: headrace.load(DS, collate_fn=list), r"`transformations=\[Batch\(n, batch_fn=function\)\]`"),
        (lambda: headrace.load(dataset=DS), "`source=`"),
        (lambda: headrace.load(DS, persistent_workers=True), "write nothing"),
        (lambda: STREAM.batch(2, collate_fn=list), "batch_fn=function"),
        (lambda: DS.map(str, batch_size=2), r"`ds.batch\(n\)`"),
        (lambda: STREAM.map(str, num_parallel_calls=2), "mp_prefetch"),
        (lambda: STREAM.mp_prefetch(num_workers=2), "mp_prefetch"),
        (lambda: DS.map(str, num_proc=2), "mp_prefetch"),
        (lambda: DS.map(str, remove_columns=["a"]), r"`ds.map\(lambda"),
        (lambda: DS.shuffle(generator=1), "`seed=`"),
        (lambda: MapDataset.source([1], batch_size=2), r"`ds.batch\(n\)`"),
        (lambda: headrace.DataLoader(DS), r"data_source=.*load\(.*for batch in ds.batch"),
        (lambda: headrace.DataLoader(DS, batch_size=2, num_workers=2), r"Batch\(n\).*worker_count=.*data_source="),
        (lambda: headrace.DataLoader(data_source=DS, sampler=0, drop_last=True), r"Batch\(n, drop_remainder=True\)"),
        (lambda: headrace.DataLoader(data_source=DS, sampler=0, generator=0), r"IndexSampler\(.*seed"),
        (lambda: headrace.load(range(3), num_workers=2), "worker_count="),
        (lambda: headrace.ReadOptions(num_workers=2), "num_threads="),
        (lambda: headrace.MultiprocessingOptions(2, prefetch_factor=4), "per_worker_buffer_size="),
        (lambda: headrace.samplers.IndexSampler(9, generator=None), "seed="),
        (lambda: headrace.MapDataset.mix([DS], probabilities=[1]), "weights="),
        (lambda: headrace.load(range(3), collate_fn=list), r"Batch\(n, batch_fn=function\)"),
        (lambda: DS.batch(2, drop_remander=True), "Did you mean `drop_remainder`?"),
    ],
)
def test_a_call_as_in_other_libraries_says_what_to_write(call, instead):
    with pytest.raises(TypeError, match=instead):
        call()


@pytest.mark.parametrize(
    ("read", "instead"),
    [
        (lambda: LOADER.map, r"`loader.dataset.map\(...\)`, or give `operations`"),
        (lambda: LOADER.to("cuda"), r"`prefetch_to_device\(loader.dataset, device\)`"),
        (lambda: STREAM.to("cuda"), r"`prefetch_to_device\(ds, device\)`"),
        (lambda: DS.cuda(), r"`prefetch_to_device\(ds, device\)`"),
        (lambda: DS.remove_columns("a"), r"`ds.map\(lambda"),
        (lambda: LOADER.explian, "Did you mean `explain`?"),
    ],
)
def test_an_attribute_as_in_other_libraries_says_what_to_write(read, instead):
    with pytest.raises(AttributeError, match=instead):
        read()


def test_what_is_no_iterator_has_no_next():
    assert not any(hasattr(each, "__next__") for each in (DS, STREAM, LOADER))


def test_a_wrong_call_inside_of_a_function_is_shown_as_it_is():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'drop_last'"):
        list(DS.map(lambda x: (lambda: x)(drop_last=True)))


def test_signatures_are_those_of_the_methods():
    assert list(inspect.signature(MapDataset.batch).parameters) == ["self", "batch_size", "drop_remainder", "batch_fn"]
