"""What `MapDataset.source` and loaders may be given: paths, and arrays in other forms than dicts."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace import DataLoader, MapDataset
from headrace.errors import PipelineError
from headrace.samplers import IndexSampler
from headrace.sources import JsonLinesDataSource
from headrace.testing import assert_equal

ROWS = [{"x": i, "name": f"n{i}"} for i in range(7)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("given") / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_a_path_is_opened(path):
    for given in (str(path), path, str(path.parent), str(path.parent / "*.jsonl")):
        assert list(MapDataset.source(given)) == ROWS
    assert type(headrace.open(path)) is JsonLinesDataSource
    assert headrace.open is headrace.sources.open


def test_a_path_that_does_not_exist():
    with pytest.raises(FileNotFoundError, match="No file matches nowhere.jsonl"):
        MapDataset.source("nowhere.jsonl")


def test_a_compressed_file_is_a_stream(path, tmp_path):
    packed = tmp_path / "data.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(
        PipelineError, match=r"data.jsonl.gz is compressed, so it can only be read in order.*`headrace.open\(path\)`"
    ):
        MapDataset.source(packed)
    assert list(headrace.open(packed)) == ROWS


def test_texts_in_a_list_are_elements():
    assert list(MapDataset.source(["data.jsonl", "b"])) == ["data.jsonl", "b"]


def test_loaders_take_paths(path):
    sampler = IndexSampler(len(ROWS), shuffle=True, seed=1, num_epochs=1)
    iterators = [iter(DataLoader(data_source=given, sampler=sampler)) for given in (path, JsonLinesDataSource(path))]
    for _ in range(3):
        assert next(iterators[0]) == next(iterators[1])
    states = [iterator.get_state() for iterator in iterators]
    assert states[0] == states[1]
    iterators[0].set_state(states[1])
    assert list(iterators[0]) == list(iterators[1])
    assert list(headrace.load(Path(path), num_epochs=1)) == ROWS


def test_two_arrays_of_one_length_are_an_error_with_the_dict_to_write():
    x, y = np.eye(3), np.arange(3)
    with pytest.raises(PipelineError, match="of 3 rows.*`MapDataset.source\\({'x': x, 'y': y}\\)`.*in a list"):
        MapDataset.source((x, y))
    assert_equal(MapDataset.source({"x": x, "y": y})[1], {"x": x[1], "y": np.int64(1)})
    for elements in ([x, y], (x, np.arange(2)), (x, y, y), (np.array(1), np.array(2)), ("ab", "cd")):
        assert_equal(list(MapDataset.source(elements)), list(elements))
    torch = pytest.importorskip("torch")
    with pytest.raises(PipelineError, match="of 3 rows"):
        MapDataset.source((torch.eye(3), torch.arange(3)))


def test_mappings_keep_their_length_in_loaders():
    """That of their arrays, not the number of their keys."""
    from collections import UserDict

    loader = DataLoader(data_source=UserDict(x=np.arange(5)), sampler=IndexSampler(5, num_epochs=1))
    assert [row["x"] for row in loader] == [0, 1, 2, 3, 4]


def test_what_can_only_be_read_in_order_is_an_error_that_says_what_reads_it():
    with pytest.raises(PipelineError, match=r"generator lacks `__len__`. `headrace.sources.from_generator"):
        MapDataset.source(i for i in range(3))
    with pytest.raises(PipelineError, match=r"int lacks `__len__`.$"):
        MapDataset.source(3)


def test_pytorchs_and_hugging_faces_streams_are_named():
    data = pytest.importorskip("torch.utils.data")

    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(PipelineError, match=r"Stream lacks `__len__`. `headrace.sources.TorchIterDataset"):
        MapDataset.source(Stream())


def test_a_dict_of_splits_says_to_choose_one():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [1, 2]})
    with pytest.raises(PipelineError, match=r"its splits \['train', 'test'\]: choose one, .*split='train'"):
        MapDataset.source(datasets.DatasetDict({"train": rows, "test": rows}))
    with pytest.raises(PipelineError, match=r"lacks `__len__`. `headrace.sources.HuggingFaceIterDataset"):
        MapDataset.source(rows.to_iterable_dataset())
