"""`print(ds)` has one line for each operation, whatever its arguments are, and a loader names its operations."""

import time

import numpy as np

import headrace
from headrace.ops.op import describe


class Lines:
    """A transform whose `repr` has several lines, as those of tokenizers have."""

    def map(self, element):
        return element

    def __repr__(self):
        return "Lines(\n    vocabulary={\n        0: 'a',\n    },\n)"


class Broken:
    def map(self, element):
        return element

    def __repr__(self):
        raise ValueError("no repr")


def test_each_operation_has_one_line_whatever_its_arguments_are():
    ds = (
        headrace.MapDataset.source([np.eye(3), np.zeros((3, 3))])
        .map(Lines())
        .map(Broken())
        .map(headrace.MapTransform(Lines().map))
        .batch(2, batch_fn=Lines().map)
    )
    lines = str(ds).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("MapDataset.source([array([[1., 0., 0.], [0., 1., 0.], [0., 0., 1.]]), array([[0., 0")
    assert lines[1] == "  .map(Lines( vocabulary={ 0: 'a', }, ))"
    assert lines[2] == "  .map(Broken)"
    assert len(str(ds.explain()).splitlines()) == 5


def test_a_repr_cannot_send_codes_to_the_terminal():
    class Red(Lines):
        def __repr__(self):
            return "\x1b[31mred"

    assert describe(Red()) == "\\x1b[31mred"


def test_a_source_of_a_long_list_prints_quickly():
    ds = headrace.MapDataset.source([{"text": "word " * 20}] * 1_000_000)
    began = time.process_time()
    text = str(ds)
    assert time.process_time() - began < 0.2
    assert text.startswith("MapDataset.source([{'text': 'word word")
    assert text.endswith("...)")


def test_seeds_have_their_name():
    ds = headrace.MapDataset.range(4).seed(7).shuffle()
    assert str(ds).splitlines()[1:] == ["  .seed(7)", f"  .shuffle(seed={ds._op.seed})"]


def add_one(element):
    return element + 1


def test_a_loader_names_its_operations():
    loader = headrace.load(
        range(8), num_epochs=1, transformations=[add_one, Lines()], batch_size=2, drop_remainder=True
    )
    text = repr(loader)
    assert "operations=[Map(add_one at test_reprs.py:" in text
    line = Lines.map.__code__.co_firstlineno
    assert text.endswith(f", Map(map at test_reprs.py:{line}), batch(2, drop_remainder)])")
    assert "\n" not in text
