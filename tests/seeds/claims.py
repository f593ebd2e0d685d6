"""What the documents say of their blocks' results, as checks that run right after the block, in its process.

A claim gets the names that the blocks have defined so far and what each has printed, by block number.
"""

import itertools
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.seeds import given, stand_ins
from tests.seeds.documents import Block


@dataclass(frozen=True)
class Seen:
    """What is there after a block: names, and texts printed."""

    names: dict[str, Any]
    printed: dict[int, str]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.names[name]
        except KeyError:
            raise AttributeError(f"The document has not defined {name!r} so far.") from None


_CLAIMS: dict[tuple[str, int], Callable[[Seen], None]] = {}


def check(block: Block, names: dict[str, Any], printed: dict[int, str]) -> None:
    """Raises where what the document says of a block does not hold."""
    claim = _CLAIMS.get((block.document, block.number))
    if claim:
        claim(Seen(names, printed))


def claims() -> list[tuple[str, int]]:
    """The blocks of which something is claimed."""
    return list(_CLAIMS)


def _claim(document: str, *numbers: int) -> Callable[[Callable[[Seen], None]], Callable[[Seen], None]]:
    def register(claim: Callable[[Seen], None]) -> Callable[[Seen], None]:
        _CLAIMS.update({(document, number): claim for number in numbers})
        return claim

    return register


def _expect(found: Any, expected: Any) -> None:
    assert found == expected, f"expected {expected!r}, found {found!r}"


def _first(iterable: Any) -> Any:
    return next(iter(iterable))


def _labels(printed: str) -> list[str]:
    """The lines printed, each an index, perhaps a file's name, and a label."""
    return re.findall(r"^\d+ .*$", printed, re.MULTILINE)


@_claim("000", 1)
def _images_have_their_shape(seen: Seen) -> None:
    _expect(tuple(seen.image.shape), (28, 28, 1))
    _expect(seen.printed[1].count("Image shape: (28, 28, 1), Label:"), 3)


@_claim("000", 2)
def _splits_have_their_sizes(seen: Seen) -> None:
    train, test = stand_ins.NUM_TRAIN, stand_ins.NUM_TEST
    sizes = [len(ds) for ds in (seen.train_ds, seen.val_ds, seen.test_ds, seen.all_ds)]
    _expect(sizes, [round(train * 0.8), train - round(train * 0.8), test, train + test])


@_claim("000", 3)
def _the_pipeline_gives_batches_of_128(seen: Seen) -> None:
    _expect((seen.images.shape, seen.labels.shape), ((128, 28, 28, 1), (128, 10)))
    assert 0 < seen.loss < 10, seen.loss


@_claim("000", 4)
def _the_pipeline_without_augmentation_runs(seen: Seen) -> None:
    images, labels = _first(seen.create_cifar10_pipeline("test", batch_size=32))
    _expect((images.shape, labels.shape), ((32, 32, 32, 3), (32,)))


@_claim("000", 5)
def _the_repeated_pipeline_has_no_end(seen: Seen) -> None:
    batches = 2 * stand_ins.NUM_TRAIN // 32
    _expect(sum(1 for _ in seen.ds.take(batches)), batches)


@_claim("000", 6)
def _the_loader_gives_batches_of_32_in_the_order_of_its_seed(seen: Seen) -> None:
    _expect((seen.images.shape, seen.labels.shape), ((32, 28, 28, 1), (32, 10)))
    keys = [record.record_key for record in seen.grain.IndexSampler(10_000, shuffle=True, seed=42, num_epochs=1)]
    batches = list(seen.loader)
    _expect(len(batches), 10_000 // 32)
    kept = keys[: 32 * len(batches)]
    assert len(set(kept)) == len(kept)
    assert kept != sorted(kept)
    images, labels = (np.concatenate([batch[name] for batch in batches]) for name in ("image", "label"))
    np.testing.assert_array_equal(images, seen.source.images[kept] / 255.0)
    np.testing.assert_array_equal(labels, np.eye(10, dtype=np.float32)[seen.source.labels[kept]])


@_claim("000", 7)
def _texts_are_tokens_of_the_length_asked_for(seen: Seen) -> None:
    _expect(seen.i, stand_ins.NUM_TEXTS // 32 - 1)
    _expect(np.shape(seen.input_ids), (32, 512))


@_claim("000", 8)
def _lines_come_in_the_order_of_the_seed(seen: Seen) -> None:
    records = itertools.islice(seen.grain.IndexSampler(stand_ins.NUM_LINES, shuffle=True, seed=42), 32)
    batch = _first(seen.loader)
    _expect(batch["id"].tolist(), [record.record_key for record in records])
    np.testing.assert_array_equal(batch["num_words"], batch["id"])


@_claim("000", 9)
def _images_are_read_from_their_folders(seen: Seen) -> None:
    batch = _first(seen.loader)
    _expect(batch["image"].shape, (256, given.SIDE, given.SIDE, 3))
    _expect(batch["image"].dtype, np.float32)
    assert 0 <= batch["image"].min() < batch["image"].max() <= 1
    _expect(set(batch["label"].tolist()), {0, 1, 2})
    sampler = seen.grain.IndexSampler(stand_ins.NUM_FOLDER_IMAGES, shuffle=True, seed=42)
    keys = [record.record_key for record in itertools.islice(sampler, 256)]
    _expect(batch["label"].tolist(), [seen.source.labels[key] for key in keys])


@_claim("000", 10)
def _throughput_is_told(seen: Seen) -> None:
    assert re.search(r"Throughput: \d+\.\d examples/sec", seen.printed[10])


@_claim("001", 2)
def _records_are_numbered_and_every_epoch_has_each_key(seen: Seen) -> None:
    records = list(seen.index_sampler)
    _expect([record.index for record in records], list(range(10)))
    for epoch in (records[:5], records[5:]):
        _expect(sorted(record.record_key for record in epoch), list(range(5)))
    assert all(isinstance(record.rng, np.random.Generator) for record in records)
    _expect(len(seen.printed[2].splitlines()), 10)


@_claim("001", 3)
def _the_source_has_its_records(seen: Seen) -> None:
    _expect(len(seen.source), stand_ins.NUM_IMAGENET)
    _expect(sorted(seen.source[0]), ["file_name", "image", "label"])


@_claim("001", 6)
def _images_are_resized_and_cropped(seen: Seen) -> None:
    elements = list(seen.data_loader)
    _expect([element["image"].shape for element in elements], [(224, 224, 3)] * 10)
    keys = [record.record_key for record in seen.index_sampler]
    _expect([element["file_name"] for element in elements], [seen.source[key]["file_name"] for key in keys])


@_claim("001", 9)
def _the_checkpoint_has_the_sampler_and_the_source(seen: Seen) -> None:
    state = json.loads(seen.printed[9])
    _expect((state["sampler"], state["data_source"]), (seen.index_sampler.identity, repr(seen.source)))


@_claim("001", 12)
def _the_loader_is_set_back_to_the_fifth_element(seen: Seen) -> None:
    _expect(_labels(seen.printed[12]), _labels(seen.printed[10]))
    _expect([line.split()[0] for line in _labels(seen.printed[12])], ["5", "6", "7", "8", "9"])
    assert len(set(_labels(seen.printed[12]))) == 5
    assert next(seen.data_iter, None) is None


@_claim("001", 13)
def _the_first_record_is_read_from_memory(seen: Seen) -> None:
    assert seen.printed[13].endswith("First Record Read: 0\n"), seen.printed[13]


@_claim("001", 14)
def _five_workers_read_each_record_once_an_epoch(seen: Seen) -> None:
    numbers = [int(line) for line in seen.printed[14].split()]
    _expect((sorted(numbers[:5]), sorted(numbers[5:])), ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4]))
    sampler = seen.grain.IndexSampler(num_records=5, num_epochs=2, shuffle=True, seed=0)
    _expect(numbers, [record.record_key for record in sampler])


@_claim("001", 15)
def _ten_workers_read_the_source_in_the_order_of_the_seed(seen: Seen) -> None:
    _expect(seen.data_loader.multiprocessing_options.num_workers, 10)
    sampler = seen.grain.IndexSampler(len(seen.source), num_epochs=2, shuffle=True, seed=0)
    names = [seen.source[record.record_key]["file_name"] for record in sampler]
    _expect([element["file_name"] for element in seen.data_loader], names)


@_claim("002", 5)
def _batches_have_64_images(seen: Seen) -> None:
    assert "Batch data shape: (64, 32, 32, 3)\nBatch label shape: (64,)" in seen.printed[5]
    keys = [record.record_key for record in itertools.islice(seen.index_sampler, 64)]
    _expect(seen.first_batch["label"].tolist(), [key % 10 for key in keys])
    _expect(seen.first_batch["image"].dtype, np.float32)


@_claim("002", 6)
def _workers_give_the_same_batch(seen: Seen) -> None:
    for name in ("image", "label"):
        np.testing.assert_array_equal(seen.first_batch_parallel[name], seen.first_batch[name])


@_claim("002", 7)
def _random_scaling_is_reproducible(seen: Seen) -> None:
    operations = [seen.transformations[0], seen.RandomScale(), seen.transformations[1]]
    loader = seen.grain.DataLoader(data_source=seen.source, operations=operations, sampler=seen.index_sampler)
    once, again = (_first(loader)["image"] for _ in range(2))
    np.testing.assert_array_equal(once, again)
    scales = once.max(axis=(1, 2, 3)) / seen.first_batch["image"].max(axis=(1, 2, 3))
    assert 0.8 <= scales.min() < scales.max() <= 1.2, scales
    assert len(set(scales.tolist())) > 32, scales


@_claim("002", 8)
def _one_process_is_one_shard(seen: Seen) -> None:
    options = seen.shard_options
    _expect((options.shard_index, options.shard_count, options.drop_remainder), (0, 1, True))
    assert "Using ShardByJaxProcess" in seen.printed[8]


@_claim("002", 10)
def _the_loop_trains_to_its_last_step(seen: Seen) -> None:
    _expect(seen.step, seen.num_steps - 1)
    _expect(seen.printed[10].count("Step "), seen.num_steps // 100)
    assert np.all(np.isfinite(seen.state[0]))
    assert np.any(seen.state[0])


@_claim("003", 13, 18, 26)
def _images_and_labels_are_flat(seen: Seen) -> None:
    for images, labels, size in (
        (seen.train_images, seen.train_labels, stand_ins.NUM_TRAIN),
        (seen.test_images, seen.test_labels, stand_ins.NUM_TEST),
    ):
        _expect((images.shape, labels.shape), ((size, 784), (size, 10)))


@_claim("003", 15)
def _training_takes_eight_epochs(seen: Seen) -> None:
    accuracies = _accuracies(seen.printed[15])
    _expect(len(accuracies), 8)
    assert float(accuracies[-1][0]) > 0.5, accuracies


@_claim("003", 28)
def _training_on_the_loader_is_training_on_pytorchs(seen: Seen) -> None:
    _expect(_accuracies(seen.printed[28]), _accuracies(seen.printed[15]))
    images, labels = _first(seen.pygrain_training_generator())
    np.testing.assert_array_equal(images, seen.train_images[: seen.batch_size])
    np.testing.assert_array_equal(labels, np.argmax(seen.train_labels[: seen.batch_size], axis=1))


@_claim("003", 34)
def _training_on_the_last_loader_takes_eight_epochs(seen: Seen) -> None:
    _images_and_labels_are_flat(seen)
    _expect(len(_accuracies(seen.printed[34])), 8)


def _accuracies(printed: str) -> list[tuple[str, str]]:
    return re.findall(r"Train Accuracy: (\S+), Test Accuracy: (\S+)", printed)


@_claim("004", 3)
def _elements_come_in_the_order_of_the_seed(seen: Seen) -> None:
    whole = list(seen.ds)
    _expect(len(whole), stand_ins.NUM_TRAIN)
    _expect(_labels(seen.printed[3]), [f"{i} {whole[i]['label']}" for i in range(4)])
    assert [element["label"] for element in whole] != [element["label"] for element in seen.ds.parents[0].parents[0]]


@_claim("004", 6)
def _the_checkpoint_is_the_index(seen: Seen) -> None:
    _expect(json.loads(seen.printed[6])["next_index"], 4)


@_claim("004", 8)
def _the_iterator_is_set_back_to_the_fourth_element(seen: Seen) -> None:
    whole = list(itertools.islice(seen.ds, 8))
    _expect(_labels(seen.printed[7]), [f"{i} {whole[i]['label']}" for i in range(4, 8)])
    _expect(_labels(seen.printed[8]), _labels(seen.printed[7]))


@_claim("004", 9)
def _a_mix_ends_with_its_shortest_part(seen: Seen) -> None:
    length = int(min(stand_ins.NUM_PNEUMONIA / 0.7, stand_ins.NUM_TRAIN / 0.3))
    _expect(seen.printed[9], f"Mixed dataset length = {length}\n(28, 28, 1)\n")


@_claim("004", 10)
def _filtered_parts_are_mixed(seen: Seen) -> None:
    _expect(seen.printed[10], "(28, 28, 1)\n")
    parts = [[features["label"] for features in part] for part in (seen.ds1, seen.ds2)]
    _expect((set(parts[0]), set(parts[1])), ({1}, {5, 6, 7, 8, 9}))
    _expect(len(parts[0]), stand_ins.NUM_PNEUMONIA // 2)


@_claim("004", 11, 12)
def _repeated_parts_have_no_end(seen: Seen) -> None:
    _expect([len(ds) for ds in (seen.ds1, seen.ds2, seen.ds)], [sys.maxsize] * 3)


@_claim("004", 13)
def _rows_of_all_files_are_shuffled_in_windows(seen: Seen) -> None:
    rows = [(int(row["file"]), int(row["row"])) for row in seen.dataset]
    files = len(seen.filenames)
    interleaved = [(file, row) for row in range(stand_ins.NUM_ROWS) for file in range(files)]
    assert rows != interleaved
    for start in range(0, len(interleaved), 10):
        _expect(sorted(rows[start : start + 10]), sorted(interleaved[start : start + 10]))
    _expect(len(seen.printed[13].splitlines()), 5)


@_claim("004", 14)
def _elements_are_on_the_device(seen: Seen) -> None:
    elements = list(itertools.islice(seen.ds, 5))
    assert all(isinstance(element["image"], seen.jax.Array) for element in elements)
    _same_as_the_source(seen, elements)


@_claim("004", 15)
def _batches_are_laid_out_over_the_devices(seen: Seen) -> None:
    host = seen.grain.MapDataset.source(seen.source).batch(len(seen.devices)).to_iter_dataset()
    placed = seen.grain.experimental.device_put(ds=host, device=seen.sharding)
    image = _first(placed)["image"]
    _expect(image.sharding, seen.sharding)
    np.testing.assert_array_equal(image, _first(host)["image"])


@_claim("004", 16)
def _threads_read_the_source_in_order(seen: Seen) -> None:
    _same_as_the_source(seen, list(itertools.islice(seen.ds, 40)))


@_claim("004", 17)
def _read_options_are_picked(seen: Seen) -> None:
    options = seen.performance_config.read_options
    assert not options.num_threads or options.prefetch_buffer_size, options
    assert options.prefetch_buffer_size * seen.source[0]["image"].nbytes <= 1024 << 20, options
    _same_as_the_source(seen, list(itertools.islice(seen.ds, 40)))


@_claim("004", 18)
def _workers_read_the_source_in_order(seen: Seen) -> None:
    _same_as_the_source(seen, list(itertools.islice(seen.prefetch_lazy_iter_ds, 40)))


@_claim("004", 19)
def _the_number_of_workers_is_picked(seen: Seen) -> None:
    assert seen.performance_config.multiprocessing_options.num_workers >= 0
    _same_as_the_source(seen, list(itertools.islice(seen.prefetch_lazy_iter_ds, 40)))


def _same_as_the_source(seen: Seen, elements: list[dict[str, Any]]) -> None:
    assert elements
    for i, element in enumerate(elements):
        np.testing.assert_array_equal(element["image"], seen.source[i]["image"])
        _expect(int(element["label"]), int(seen.source[i]["label"]))
