"""Random programs do in Headrace what they do in Grain, but for the rows of `differences.py`.

`HEADRACE_SOAK=5000` tries so many programs of each kind instead of those of the profile.
"""

import os
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.against_grain.compare import Difference, Failure, compare_items, compare_walks, same
from tests.against_grain.differences import ALLOWED, row_of
from tests.against_grain.functions import Boom
from tests.against_grain.loaders import elastic_runs, loaders
from tests.against_grain.packings import bin_packings, split_packings
from tests.against_grain.programs import map_programs, stream_programs

pytestmark = pytest.mark.filterwarnings("ignore")
SOAK = int(os.environ.get("HEADRACE_SOAK", 0))
PROGRAMS = SOAK or 3 * settings().max_examples
many = settings(max_examples=PROGRAMS, derandomize=not SOAK)  # the same programs in every run but a hunt
few = settings(max_examples=max(2, PROGRAMS // 50), derandomize=not SOAK)  # of those that start processes

ACTIONS = ("next", "next", "save", "restore", "fresh")
ALL_ACTIONS = (*ACTIONS, "prefetch", "close", "index", "seek", "cross")


def scripts(*actions: str) -> st.SearchStrategy:
    return st.lists(st.tuples(st.sampled_from(actions), st.integers(0, 7)), max_size=6)


def agree(compare, program, *arguments):
    """Raises where the two part, unless a row says that they may."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compare(program, *arguments)
    except Difference as e:
        if row_of(program, str(e)) is None:
            raise


@many
@given(map_programs(), st.lists(st.integers(-30, 60), max_size=6))
def test_lengths_and_elements_by_index(program, indices):
    agree(compare_items, program, indices)


@many
@given(map_programs(), scripts(*ALL_ACTIONS))
def test_iterators_over_random_access_chains(program, script):
    agree(compare_walks, f"{program}.to_iter_dataset(read(None, 0))", script)


@many
@given(stream_programs(), scripts(*ALL_ACTIONS))
def test_streams(program, script):
    agree(compare_walks, program, script)


@many
@given(bin_packings(), scripts(*ACTIONS, "prefetch", "cross"))
def test_packing_into_bins(program, script):
    agree(compare_walks, program, script)


@many
@given(split_packings(), scripts(*ACTIONS, "prefetch", "cross"))
def test_packing_end_to_end(program, script):
    agree(compare_walks, program, script)


@many
@given(loaders(), scripts(*ACTIONS, "cross"))
def test_loaders(program, script):
    agree(compare_walks, program, script)


@many
@given(elastic_runs(), scripts("next", "save", "restore"))
def test_elastic_runs(program, script):
    agree(compare_walks, program, script)


@few
@given(stream_programs(max_ops=2, depth=1) | bin_packings(), scripts(*ACTIONS))
def test_workers(program, script):
    agree(compare_walks, f"workers({program}, 2)", script)


PINNED = {
    "a zip asks for nothing behind the end of a part": (
        "ZipIterDataset([M.range(2).to_iter_dataset(read(0, 0)), "
        "M.range(3, 9).to_iter_dataset(read(0, 0)).map(some_fail)], strict=False)"
    ),
    "the children before one that fails come": (
        "FlatMapIterDataset(M.source([1, 26]).to_iter_dataset(read(0, 0)), Children()).map(some_fail)"
    ),
    "the records before one that fails come": (
        "DataLoader(data_source=[26], sampler=IndexSampler(1, num_epochs=1, seed=2), "
        "operations=[Children(), Failing()], read_options=read(0, 0))"
    ),
    "workers change no seed": "workers(M.range(5).to_iter_dataset(read(0, 0)).seed(3), 0).random_map(draw)",
    "seeds behind an interleave are not those of what follows": (
        "I.mix([InterleaveIterDataset([M.range(5).seed(1).to_iter_dataset(read(0, 0))], cycle_length=1), "
        "M.range(5).seed(2).to_iter_dataset(read(0, 0))]).random_map(draw)"
    ),
}


@pytest.mark.parametrize("name", PINNED)
def test_what_was_different_once_is_no_more(name):
    compare_walks(PINNED[name], [])


@pytest.mark.parametrize("row", ALLOWED, ids=lambda row: row.name)
def test_every_row_is_still_a_difference(row):
    with pytest.raises(Difference) as raised:  # where none is raised, the row is to be deleted
        compare_walks(row.example, list(row.script))
    assert row.covers(row.example, str(raised.value))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (np.int64(1), np.int32(1)),
        (1, 1.0),
        ([1], (1,)),
        (np.zeros(2), np.zeros(3)),
        (1, Failure(ValueError())),
        (Failure(KeyError()), Failure(Boom())),
        (Failure(RuntimeError()), Failure(ValueError())),
    ],
)
def test_what_is_not_the_same_is_told(ours, theirs):
    with pytest.raises(Difference):
        same("it", ours, theirs)
