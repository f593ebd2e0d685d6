"""Elements that are written right into their batch, and who may see them."""

import numpy as np
import pytest

from headrace import MapDataset, trees
from headrace.trees import new_row

SIZE = 40


def made(i):
    row = new_row((3, 2), np.uint8)
    row[...] = i % 256
    return row


FORMS = {
    "array": lambda i: made(i),
    "dict": lambda i: {"image": made(i), "label": i},
    "tuple": lambda i: (made(i), i),
    "nested": lambda i: {"a": ([made(i)], {"b": i})},
}


@pytest.fixture
def num_copies(monkeypatch):
    """Counts how often arrays are stacked by copying."""
    counts = []
    concatenate = np.concatenate
    monkeypatch.setattr(
        trees.np, "concatenate", lambda *args, **kwargs: counts.append(1) or concatenate(*args, **kwargs)
    )
    return counts


def expected(form, start, count=SIZE):
    return trees.stack([trees.copy_tree(FORMS[form](i)) for i in range(start, start + count)])


def assert_batches(batches, form, length=100):
    starts = range(0, length, SIZE)
    assert len(batches) == len(starts)
    for batch, start in zip(batches, starts, strict=True):
        wanted = expected(form, start, min(SIZE, length - start))
        assert trees.flatten(batch)[1] == trees.flatten(wanted)[1]
        assert all(map(np.array_equal, trees.leaves(batch), trees.leaves(wanted)))


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_not_copied(form, num_copies):
    batches = list(MapDataset.range(100).map(FORMS[form]).batch(SIZE))
    assert bool(num_copies) == (form == "nested")  # where a container may be somebody else's too
    assert_batches(batches, form)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("form", FORMS)
def test_workers_write_to_the_memory_that_the_consumer_gets(form):
    with iter(MapDataset.range(100).map(FORMS[form]).batch(SIZE).to_iter_dataset().mp_prefetch(2)) as iterator:
        assert_batches(list(iterator), form)


@pytest.mark.parametrize("form", FORMS)
def test_what_others_keep_does_not_change_with_the_batch(form):
    kept = []

    def keep(element):
        kept.append(element)
        return element

    for batch in MapDataset.range(100).map(FORMS[form]).map(keep).batch(SIZE):
        for leaf in trees.leaves(batch):
            leaf[...] = 77
    wanted = [FORMS[form](i) for i in range(100)]
    assert all(map(np.array_equal, trees.leaves(kept), trees.leaves(wanted)))


def test_a_cache_does_not_change_with_the_batch():
    ds = MapDataset.range(80).map(FORMS["dict"]).cache().batch(SIZE)
    for _ in range(2):
        for i, batch in enumerate(ds):
            assert np.array_equal(batch["image"], expected("dict", SIZE * i)["image"])
            batch["image"][...] = 77


OTHERS = {
    "two for each element": lambda i: (made(i), made(i + 1)),
    "one twice": lambda i: [made(i)] * 2,
    "other shapes": lambda i: new_row((2, 2), np.int8) * 0 + i if i == 3 else made(i)[:2].astype(np.int8),
    "only some": lambda i: made(i) if i % 2 else np.full((3, 2), i, np.uint8),
    "a part": lambda i: made(i)[1:],
    "the one before": lambda i: (made(i), made(i))[0],
    "not kept": lambda i: (made(i), i)[1],
}


@pytest.mark.parametrize("kind", OTHERS)
def test_all_else_is_copied_as_ever(kind):
    ds = MapDataset.range(100).map(OTHERS[kind])
    wanted = [trees.stack([trees.copy_tree(ds[i]) for i in range(a, min(a + SIZE, 100))]) for a in (0, 40, 80)]
    for batch, other in zip(ds.batch(SIZE), wanted, strict=True):
        assert all(map(np.array_equal, trees.leaves(batch), trees.leaves(other)))


def test_order_matters():
    ds = MapDataset.range(80).map(FORMS["array"])[::-1].batch(SIZE)
    assert [batch[0, 0, 0] for batch in ds] == [79, 39]
    shuffled = MapDataset.range(80).map(FORMS["array"]).shuffle(seed=1)
    assert [batch[:, 0, 0].tolist() for batch in shuffled.batch(SIZE)] == [
        [int(shuffled[i][0, 0]) for i in range(a, a + SIZE)] for a in (0, 40)
    ]


def test_batches_of_batches():
    ds = MapDataset.range(64 * 40).map(FORMS["array"]).batch(32).batch(40)
    found = np.concatenate([batch.reshape(-1, 3, 2) for batch in ds])
    assert np.array_equal(found[:, 0, 0], np.arange(64 * 40).astype(np.uint8))
