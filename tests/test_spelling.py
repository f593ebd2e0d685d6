"""Misspelled names: errors say which name was meant, once, in every kind of traceback."""

import re
import subprocess
import sys
import traceback

import pytest

import headrace
from headrace import MapDataset
from headrace.errors import SpecError
from tests.proc import LIMIT_S

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
