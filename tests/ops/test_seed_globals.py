"""Datasets that draw from the generators of the whole process: the same elements whatever reads them."""

import os
import random
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

from headrace import DataLoader, MapDataset, MultiprocessingOptions, ReadOptions
from headrace.errors import PipelineError, StateError
from headrace.samplers import IndexSampler
from headrace.sources import TorchDataSource
from headrace.testing import assert_block_law, assert_equal, assert_resumable
from headrace.transforms import Batch, RandomMap, SeedGlobals
from tests.media.images.oracle import torch, v2
from tests.support.chains import Dice
from tests.support.proc import LIMIT_S

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it would ask the network for its newest version
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    A = pytest.importorskip("albumentations")

IMAGES = np.random.default_rng(0).integers(0, 256, (24, 3, 20, 20), np.uint8)


class Pictures(torch.utils.data.Dataset):
    """A dataset as people have them: transforms of torchvision and albumentations, and some numbers drawn by hand.

    Albumentations' transforms have generators of their own, which it seeds from those of the process.
    """

    def __init__(self):
        crop = v2.RandomResizedCrop(8, antialias=False)
        self.transform = v2.Compose([crop, v2.RandomHorizontalFlip(), v2.ColorJitter(0.5, 0.5)])
        self.augment = A.Compose([A.RandomCrop(8, 8), A.HorizontalFlip(), A.RandomBrightnessContrast()])

    def __len__(self):
        return len(IMAGES)

    def __getitem__(self, i):
        image = self.transform(torch.from_numpy(IMAGES[i]))
        self.augment.set_random_seed(random.getrandbits(32))
        augmented = self.augment(image=np.ascontiguousarray(IMAGES[i].transpose(1, 2, 0)))["image"]
        draws = random.random(), np.random.normal(), torch.randn(2)
        return {"image": image, "augmented": augmented, "draws": draws, "index": i}


def batches(dataset, num_workers=0, num_threads=0, num_epochs=2, **options):
    source = TorchDataSource(dataset) if isinstance(dataset, torch.utils.data.Dataset) else dataset
    ds = MapDataset.source(source, **{"seed_globals": True, "seed": 7, **options}).shuffle(seed=1)
    stream = ds.repeat(num_epochs).batch(5).to_iter_dataset(ReadOptions(num_threads=num_threads))
    return stream.mp_prefetch(MultiprocessingOptions(num_workers=num_workers))


# ---- one stream


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("make", "num_workers", "num_threads"),
    [
        (lambda: Pictures(), 0, 3),
        (lambda: Pictures(), 1, 0),
        (lambda: Dice(24), 4, 0),  # which import no torch
    ],
)
def test_batches_do_not_depend_on_threads_or_workers(make, num_workers, num_threads):
    dataset = make()
    expected = list(batches(dataset))
    random.seed(99)  # what the process did before does not matter either
    assert_equal(list(batches(dataset, num_workers, num_threads)), expected)


def test_without_the_call_in_it_albumentations_draws_from_its_own_generators():
    augment = A.Compose([A.RandomBrightnessContrast(p=1)])
    ds = MapDataset.source([IMAGES[0]] * 3, seed_globals=True, seed=1).random_map(
        SeedGlobals(augment_with(augment)), seed=2
    )
    assert (ds[0] != ds[0]).any()


def augment_with(augment):
    return lambda image: augment(image=np.ascontiguousarray(image.transpose(1, 2, 0)))["image"]


def test_without_it_batches_depend_on_them():
    plain = [list(batches(Dice(20), n, seed_globals=False, seed=None)) for n in (0, 2)]
    with pytest.raises(AssertionError):
        assert_equal(*plain)


def test_each_record_epoch_and_seed_has_numbers_of_its_own():
    ds = MapDataset.source(Pictures(), seed_globals=True, seed=7)
    seeds = [ds, MapDataset.source(Pictures(), seed_globals=True, seed=8)]
    draws = [np.ravel([ds[i]["draws"][0], ds[i]["draws"][1], *ds[i]["draws"][2]]) for ds in seeds for i in range(48)]
    assert len(np.unique(np.concatenate(draws).round(9))) == 2 * 48 * 4
    assert ds[3]["index"] == ds[27]["index"] == 3


def test_random_access_gives_what_the_stream_gives():
    ds = MapDataset.source(TorchDataSource(Pictures()), seed_globals=True, seed=7).shuffle(seed=1).repeat(2)
    assert_block_law(ds)
    assert_equal([ds[i] for i in range(48)], list(ds))
    assert_resumable(batches(Pictures()))


def test_a_loader_has_other_numbers_in_its_second_epoch():
    def loaded(worker_count):
        source = MapDataset.source(Dice(6), seed_globals=True, seed=3)
        sampler = IndexSampler(6, shuffle=True, num_epochs=2, seed=1)
        return list(DataLoader(data_source=source, sampler=sampler, worker_count=worker_count))

    inline = loaded(0)
    assert_equal(loaded(2), inline)
    by_record = {i: [tuple(x[1:]) for x in inline if x[0] == i] for i in range(6)}
    assert all(len(set(draws)) == 2 for draws in by_record.values())


class Many(Dice):
    """Reads many at once, which would be one draw for all."""

    def __getitems__(self, indices):
        return [self[i] for i in indices]


class OnlyMany:
    """Has no way to read a single record."""

    def __len__(self):
        return 9

    def __getitems__(self, indices):
        return [np.array([i, random.randrange(100), np.random.randint(100)]) for i in indices]


def test_records_are_read_one_by_one():
    expected = list(MapDataset.source(Dice(9), seed_globals=True, seed=3))
    for source in (Many(9), OnlyMany()):
        assert_equal(list(MapDataset.source(source, seed_globals=True, seed=3)), expected)


def test_the_seed_is_0_by_default():
    assert_equal(*(list(MapDataset.source(Dice(9), seed_globals=True, **seed)) for seed in ({}, {"seed": 0})))


class Broken(Dice):
    def __getitem__(self, i):
        if i == 2:
            raise ValueError("broken")
        return super().__getitem__(i)


def test_a_bad_record_is_left_out_and_changes_no_other():
    def read(source):
        return MapDataset.source(source, seed_globals=True, seed=7).repeat(2).to_iter_dataset()

    skipping = read(Broken(4)).on_error("skip")
    with iter(skipping) as iterator:
        found = list(iterator)
        bad = [(record["index"], record["epoch"]) for record in iterator.stats().bad_records["last"]]
    assert_equal(found, [x for x in read(Dice(4)) if x[0] != 2])
    assert bad == [(2, 0), (2, 1)]


# ---- the generators of the process


def states():
    return random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()


def assert_states(a, b):
    assert a[0] == b[0]
    assert_equal(a[1]["state"], b[1]["state"])
    assert (a[1]["has_gauss"], a[1]["gauss"]) == (b[1]["has_gauss"], b[1]["gauss"])
    assert torch.equal(a[2], b[2])


def test_the_generators_are_put_back():
    np.random.normal()  # so that a second number of a pair is waiting
    before = states()
    ds = MapDataset.source(Pictures(), seed_globals=True, seed=7)
    list(ds.to_iter_dataset(ReadOptions(num_threads=3)))
    _ = ds[3]
    assert_states(states(), before)


def test_the_generators_are_put_back_after_an_error():
    before = states()
    with pytest.raises(ValueError, match="broken") as info:
        list(MapDataset.source(Broken(4), seed_globals=True, seed=7).repeat(2).skip(4))
    assert_states(states(), before)
    assert "element 2 (pipeline at test_seed_globals.py" in info.value.__notes__[0]


def test_training_code_and_data_do_not_disturb_each_other():
    def losses(ds):
        torch.manual_seed(0)
        return [float(torch.dropout(torch.ones(50), 0.5, True).sum() + batch.sum()) for batch in ds]

    expected = losses(list(batches(Dice(20))))
    assert losses(batches(Dice(20))) == expected
    assert losses(batches(Dice(20), num_workers=2)) == expected


def test_by_default_no_thread_reads():
    source = MapDataset.source(Slow(), seed_globals=True, seed=7)
    for ds in (source, MapDataset.range(4).random_map(SeedGlobals(slowly), seed=1)):
        stream = ds.repeat(40).to_iter_dataset()
        assert "no threads" in str(stream.explain())
        assert threads_of(stream) == {threading.get_ident()}


@pytest.mark.parametrize("after", ["nothing", "a batch"])
def test_by_default_no_thread_computes_operations_of_a_loader(after):
    operations = [SeedGlobals(slowly)]
    if after == "a batch":  # then elements travel as records
        operations += [Batch(1), FirstOf()]
    sampler = IndexSampler(4, shuffle=True, num_epochs=40, seed=1)
    loader = DataLoader(data_source=range(4), sampler=sampler, operations=operations)
    assert threads_of(loader) == {threading.get_ident()}


class FirstOf(RandomMap):
    def random_map(self, element, rng):
        return int(element[0])


def threads_of(dataset):
    """The threads that compute a dataset's elements."""
    with iter(dataset) as iterator:
        iterator.start_prefetch()
        return {next(iterator) for _ in range(160)}


def slowly(_):
    for _ in range(3000):  # enough for a trial of threads
        random.random()
    return threading.get_ident()


class Slow:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return slowly(i)


def test_threads_read_one_at_a_time():
    inside = []

    class Watched(Dice):
        def __getitem__(self, i):
            inside.append(1)
            assert sum(inside) == 1
            element = super().__getitem__(i)
            threading.Event().wait(0.001)
            inside.append(-1)
            return element

    ds = MapDataset.source(Watched(40), seed_globals=True, seed=1)
    found = list(ds.to_iter_dataset(ReadOptions(num_threads=8, prefetch_buffer_size=8)))
    assert_equal(found, list(MapDataset.source(Dice(40), seed_globals=True, seed=1)))


def test_a_fork_does_not_wait_for_a_thread_of_its_parent():
    entered, leave = threading.Event(), threading.Event()

    class Held(Dice):
        def __getitem__(self, i):
            entered.set()
            assert leave.wait(LIMIT_S)
            return super().__getitem__(i)

    thread = threading.Thread(target=lambda: MapDataset.source(Held(1), seed_globals=True)[0])
    thread.start()
    assert entered.wait(LIMIT_S)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a process with threads forks
        pid = os.fork()
    if not pid:
        signal.alarm(20)
        MapDataset.source(Dice(1), seed_globals=True)[0]
        os._exit(0)
    leave.set()
    thread.join(LIMIT_S)
    assert os.waitpid(pid, 0)[1] == 0


LATE = """
import sys
from headrace import MapDataset

class Late:
    def __len__(self): return 3
    def __getitem__(self, i):
        import torch
        return float(torch.rand(()))

ds = MapDataset.source(Late(), seed_globals=True, seed=1)
assert "torch" not in sys.modules
first = ds[0]
import torch
fresh = torch.Generator().manual_seed(torch.initial_seed())
assert torch.rand(()) == torch.rand((), generator=fresh)  # as after an import
assert first == ds[0] != ds[1], (first, ds[0])
"""


def test_a_source_that_imports_torch_at_its_first_record():
    run = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=LIMIT_S)
    assert run.returncode == 0, run.stderr


# ---- functions


JITTER = v2.Compose([v2.ColorJitter(0.5), v2.RandomHorizontalFlip()])


def jittered(image):
    return JITTER(torch.from_numpy(image)).numpy()


def test_a_function_of_a_stream():
    def build():
        images = MapDataset.source(IMAGES).shuffle(seed=1).to_iter_dataset().filter(lambda x: x[0, 0, 0] > 20)
        return images.random_map(SeedGlobals(jittered), seed=5).batch(4)

    before = states()
    assert_equal(list(build().prefetch(3)), list(build()))
    assert_resumable(build())
    assert_states(states(), before)


def test_what_is_no_function():
    with pytest.raises(TypeError, match="SeedGlobals takes a function; got int: 3"):
        SeedGlobals(3)


# ---- states and arguments


def test_a_state_of_another_seed_is_refused():
    with iter(batches(Pictures(), num_epochs=1)) as iterator:
        next(iterator)
        state = iterator.get_state()
    with pytest.raises(StateError, match="source seed 7 → 8"):
        iter(batches(Pictures(), num_epochs=1, seed=8)).set_state(state)


@pytest.mark.parametrize(
    ("source", "options", "text"),
    [
        (Dice(3), {"seed": 3}, "no effect without seed_globals=True"),
        (Dice(3), {"seed_globals": True, "seed": -1}, "seed of `source` must be between 0"),
        (IMAGES, {"seed_globals": True, "seed": 3}, "ArrayDataSource is read in columns and draws none"),
    ],
)
def test_wrong_arguments(source, options, text):
    with pytest.raises(PipelineError, match=text):
        MapDataset.source(source, **options)
