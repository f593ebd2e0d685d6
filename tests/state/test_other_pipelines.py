"""States in another pipeline than their own: what decides which elements come is refused, what changes values warned of."""

import argparse
import collections
import datetime
import functools
import json
import re
import shutil
import types
import warnings

import numpy as np
import pytest

from headrace import DataLoader, IndexSampler, IterDataset, MapDataset, MultiprocessingOptions, transforms
from headrace.errors import StateError, StateWarning
from headrace.sources import JsonLinesDataSource, TextLinesDataSource, TextLinesIterDataset


def state_after(ds, count=3):
    with iter(ds) as iterator:
        for _ in range(count):
            next(iterator)
        return json.loads(json.dumps(iterator.get_state()))


def rest_from(ds, state):
    with iter(ds) as iterator:
        iterator.set_state(state)
        return [repr(x) for x in iterator]


def restores_quietly(saved, here, count=3):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rest_from(here, state_after(saved, count)) == [repr(x) for x in saved][count:]


def refuses(saved, here, said, count=3):
    state = state_after(saved, count)
    with pytest.raises(StateError, match="another pipeline") as info:
        rest_from(here, state)
    assert said in str(info.value)
    with pytest.warns(StateWarning, match="another pipeline"), iter(here) as iterator:
        iterator.set_state(state, strict=False)


def warns(saved, here, said, count=3):
    state = state_after(saved, count)
    with pytest.warns(StateWarning, match="have changed") as found:
        rest_from(here, state)
    assert said in str(found[0].message)


# ------------------------------------------------------------------------------------------------ files


def lines(folder, names, of=TextLinesDataSource):
    folder.mkdir(exist_ok=True)
    for name in names:
        if not (folder / name).exists():
            (folder / name).write_text("".join(f'"{name} {i}"\n' for i in range(20)))
    source = of([folder / name for name in names])
    return source.map(str) if isinstance(source, IterDataset) else MapDataset.source(source).to_iter_dataset()


@pytest.mark.parametrize("of", [TextLinesDataSource, JsonLinesDataSource, TextLinesIterDataset])
def test_files_in_another_order_or_with_other_names_are_refused(tmp_path, of):
    saved = lines(tmp_path, ["a", "b"], of)
    refuses(saved, lines(tmp_path, ["b", "a"], of), "other files, or in another order")
    refuses(saved, lines(tmp_path, ["a", "c"], of), "other files, or in another order")


def test_files_of_the_same_names_that_differ_are_refused(tmp_path):
    saved = lines(tmp_path / "one", ["a", "b"])
    other = tmp_path / "two"
    shutil.copytree(tmp_path / "one", other)
    (other / "b").write_text((other / "b").read_text().replace("b 3", "c 3"))
    refuses(saved, lines(other, ["a", "b"]), "with other bytes")
    (other / "b").write_text((other / "b").read_text().replace("c 3", "ccc 3"))
    refuses(saved, lines(other, ["a", "b"]), "with other sizes")


def test_files_may_move_to_another_folder_and_be_touched(tmp_path):
    saved = lines(tmp_path / "one", ["a", "b"])
    state = state_after(saved)
    expected = [repr(x) for x in saved][3:]
    shutil.move(tmp_path / "one", tmp_path / "two")
    (tmp_path / "two" / "a").touch()
    assert rest_from(lines(tmp_path / "two", ["a", "b"]), state) == expected


def test_files_of_a_users_source_count_too(tmp_path):
    class Lines:
        def __init__(self, path):
            self.path = path

        def __len__(self):
            return 20

        def __getitem__(self, i):
            return self.path.read_text().splitlines()[i]

    lines(tmp_path, ["a", "b"])
    make = lambda name: MapDataset.source(Lines(tmp_path / name)).to_iter_dataset()  # noqa: E731
    refuses(make("a"), make("b"), "other files")

    class OfTwo(Lines):
        def __init__(self, files):
            self.files = files

        def __getitem__(self, i):
            return self.files[0].read_text().splitlines()[i]

    for folder, name in (("one", "a"), ("two", "b")):
        (tmp_path / folder).mkdir()
        shutil.copy(tmp_path / name, tmp_path / folder / "x")
    first, second = ([tmp_path / folder / "x"] for folder in ("one", "two"))
    make = lambda files: MapDataset.source(OfTwo(files)).to_iter_dataset()  # noqa: E731
    refuses(make(first), make(second), "with other bytes")


# ------------------------------------------------------------------------------------------------ parts and arguments


def twenty(start):
    return MapDataset.range(start, start + 20)


def tagged(tag):
    return MapDataset.range(20).map(lambda x: (tag, x))


JOINED = {
    "concatenate": lambda parts: MapDataset.concatenate(parts).to_iter_dataset(),
    "zip": lambda parts: MapDataset.zip(parts).to_iter_dataset(),
    "mix": lambda parts: MapDataset.mix(parts).to_iter_dataset(),
    "zip of streams": lambda parts: IterDataset.zip([part.to_iter_dataset() for part in parts]),
    "mix of streams": lambda parts: IterDataset.mix([part.to_iter_dataset() for part in parts]),
    "interleave": lambda parts: IterDataset.interleave([part.to_iter_dataset() for part in parts], cycle_length=2),
}


@pytest.mark.parametrize("name", JOINED)
def test_parts_in_another_order_are_refused(name):
    join = JOINED[name]
    for make in (twenty, tagged, lambda start: MapDataset.source([start + i for i in range(20)])):
        a, b = make(0), make(100)
        refuses(join([a, b]), join([b, a]), "the same parts in another order")
        restores_quietly(join([a, b]), join([make(0), make(100)]))


def test_many_parts_in_another_order_are_refused():
    parts = [tagged(i) for i in range(100)]
    for join in (JOINED["concatenate"], JOINED["mix of streams"]):
        refuses(join(parts), join(parts[::-1]), "the same parts in another order")


def test_the_bounds_of_a_range_are_refused():
    ds = MapDataset.range(0, 20).shuffle(seed=1).to_iter_dataset()
    refuses(ds, MapDataset.range(5, 25).shuffle(seed=1).to_iter_dataset(), "source start 0 → 5")
    refuses(ds, MapDataset.range(0, 40, 2).shuffle(seed=1).to_iter_dataset(), "source step nothing → 2")


def total(rows):
    return sum(rows)


def largest(rows):
    return max(rows)


def test_another_batch_fn_is_refused():
    def make(**options):
        return MapDataset.range(20).batch(2, **options).to_iter_dataset()

    refuses(make(), make(batch_fn=total), "another batch_fn")
    refuses(make(batch_fn=total), make(), "another batch_fn")
    refuses(make(batch_fn=total), make(batch_fn=largest), "another batch_fn")
    padded = lambda value: MapDataset.range(20).batch(2, batch_fn=functools.partial(total_and, value)).to_iter_dataset()  # noqa: E731
    refuses(padded(0), padded(1), "argument 0 0 → 1")
    restores_quietly(make(batch_fn=total), make(batch_fn=total))


def total_and(value, rows):
    return sum(rows) + value


class Keep(transforms.Filter):
    def __init__(self, k):
        self.k = k

    def filter(self, x):
        return x % self.k != 0


def kept_by(k, kind):
    """A filter that asks another method of its class, or one that asks another."""

    class Keeps(transforms.Filter):
        def filter(self, x):
            return self.rest(x) if kind == "direct" else self.rests(x)

        rest = eval(f"lambda self, x: x % {k} != 0")

        def rests(self, x):
            return self.rest(x)

    return Keeps()


def kept_by_property(k):
    class Keeps(transforms.Filter):
        left_out = property(eval(f"lambda self: {k}"))

        def filter(self, x):
            return x % self.left_out != 0

    return Keeps()


def using(name, k, code):
    """A function of a module of its own, in which a name stands for `k`."""
    scope = {name: k}
    exec(code, scope)
    return scope["keep"]


FILTERS = {
    "a constant of the module": lambda k: using("K", k, "def keep(x): return x % K != 0"),
    "a constant in an inner function": lambda k: using("K", k, "def keep(x): return any(x % K for _ in range(1))"),
    "a function of the module": lambda k: using(
        "_", 0, f"def rest(x): return x % {k}\ndef keep(x): return rest(x) != 0"
    ),
    "a function of a function of the module": lambda k: using(
        "K", k, "def rest(x): return x % K\ndef rests(x): return rest(x)\ndef keep(x): return rests(x) != 0"
    ),
    "an array of the module": lambda k: using(
        "LEFT_OUT", np.arange(0, 100, k), "def keep(x): return x not in LEFT_OUT"
    ),
    "a cached function": lambda k: functools.lru_cache(lambda x: x % k != 0),
    "a vectorized function": lambda k: np.vectorize(lambda x: x % k != 0),
    "a namespace": lambda k: (lambda given: lambda x: x % given.k != 0)(types.SimpleNamespace(k=k)),
    "arguments of the command": lambda k: (lambda given: lambda x: x % given.k != 0)(argparse.Namespace(k=k)),
    "a mapping": lambda k: (lambda given: lambda x: x % given["k"] != 0)(types.MappingProxyType({"k": k})),
    "a deque": lambda k: (lambda left_out: lambda x: x not in left_out)(collections.deque(range(0, 100, k))),
    "a date": lambda k: (lambda day: lambda x: x % day.day != 0)(datetime.date(2026, 1, k)),
    "another method": lambda k: kept_by(k, "direct"),
    "a method of a method": lambda k: kept_by(k, "deep"),
    "a bound method": lambda k: kept_by(k, "deep").filter,
    "a property": kept_by_property,
    "a method of a set": lambda k: set(range(1, 100, k)).__contains__,
    "a method of a dict in a closure": lambda k: (lambda found: lambda x: found(x))(
        dict.fromkeys(range(1, 100, k)).__contains__
    ),
    "an attribute": Keep,
    "a closure": lambda k: lambda x: x % k != 0,
    "a default": lambda k: eval(f"lambda x, k={k}: x % k != 0"),
    "a constant": lambda k: eval(f"lambda x: x % {k} != 0"),
    "a partial": lambda k: functools.partial(lambda x, k: x % k != 0, k=k),
    "a list": lambda k: (lambda left_out: lambda x: x not in left_out)(list(range(0, 100, k))),
}


@pytest.mark.parametrize("name", FILTERS)
def test_what_a_filter_depends_on_is_refused_while_a_window_is_open(name):
    def make(k):
        return MapDataset.range(100).to_iter_dataset().filter(FILTERS[name](k)).window_shuffle(9, seed=1)

    refuses(make(3), make(4), "filter fn.")
    restores_quietly(make(3), make(3))
    warns(make(3), make(4), "", count=9)  # no window is open: nothing is lost


def test_another_pattern_is_refused_while_a_window_is_open():
    def make(pattern):
        return (
            MapDataset.range(100)
            .to_iter_dataset()
            .map(str)
            .filter(re.compile(pattern).search)
            .window_shuffle(9, seed=1)
        )

    refuses(make("[3-9]"), make("[4-9]"), "filter fn.self")
    restores_quietly(make("[3-9]"), make("[3-9]"))


def test_what_a_flat_map_depends_on_is_refused_among_its_children():
    def make(n):
        return MapDataset.range(20).to_iter_dataset().flat_map(lambda x: [x] * n)

    refuses(make(4), make(5), "flat_map fn.n 4 → 5")


# ------------------------------------------------------------------------------------------------ values


class Scale(transforms.Map):
    def __init__(self, by):
        self.by = by

    def map(self, x):
        return x * self.by


def test_what_a_map_depends_on_is_warned_of_by_name():
    def make(function):
        return MapDataset.range(20).map(function).to_iter_dataset()

    def times(k):
        return lambda x: x * k

    def scaled(x, by):
        return x * by

    warns(make(times(1)), make(times(2)), "<lambda> (k)")
    warns(make(Scale(1)), make(Scale(2)), "Scale (by)")
    warns(make(Scale(np.arange(3))), make(Scale(np.arange(3) + 1)), "Scale (by)")
    warns(make(functools.partial(scaled, by=1)), make(functools.partial(scaled, by=2)), "scaled (by)")
    restores_quietly(make(Scale(np.arange(3))), make(Scale(np.arange(3))))


def test_a_variable_of_the_module_is_warned_of():
    def make(k):
        keep = using("k", k, "def keep(x): return x % k != 0")
        return MapDataset.range(100).to_iter_dataset().filter(keep).window_shuffle(9, seed=1)

    warns(make(3), make(4), "keep (global k)")
    restores_quietly(make(3), make(3))


def test_a_function_in_place_of_another_is_warned_of():
    ds = MapDataset.range(20).to_iter_dataset()
    warns(ds.map(abs), ds.map(str), "str (it was abs)")
    warns(ds.batch(2, batch_fn=total), ds.batch(2, batch_fn=largest), "largest (it was total)")
    warns(ds.batch(2, batch_fn=sum), ds.batch(2, batch_fn=max), "max (it was sum)")
    restores_quietly(ds.map(abs), ds.map(abs).filter(lambda x: True))


def test_functions_of_parts_are_warned_of():
    def make(k):
        return MapDataset.concatenate([twenty(0), twenty(20).map(Scale(k))]).to_iter_dataset()

    warns(make(1), make(2), "Scale of part '1' (by)")


def test_other_elements_in_memory_are_warned_of():
    def make(elements):
        return MapDataset.source(elements).to_iter_dataset()

    warns(make(list(range(20))), make(list(range(20, 40))), "list (elements)")
    warns(make(np.arange(20)), make(np.arange(20) + 1), "ArrayDataSource (elements)")


def test_the_same_function_elsewhere_is_no_change():
    here = {}
    exec("\n\n\ndef keep(y):\n    'With a docstring.'\n    return y % 3 != 0", here)

    def keep(x):
        return x % 3 != 0

    def make(function):
        return MapDataset.range(100).to_iter_dataset().filter(function).window_shuffle(9, seed=1)

    state = state_after(make(keep))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StateWarning)
        assert rest_from(make(here["keep"]), state)
        assert rest_from(make(lambda x: x % 3 in (1, 2)), state_after(make(lambda x: x % 3 != 0)))  # a warning


def test_attributes_that_change_while_they_are_used_do_not_count():
    class Counting(transforms.Map):
        def __init__(self):
            self.calls, self.seen = 0, []

        def map(self, x):
            self.calls += 1
            self.seen.append(x)
            return x

    restores_quietly(*(MapDataset.range(20).map(Counting()).to_iter_dataset() for _ in range(2)))


def test_states_do_not_depend_on_workers():
    class Local(transforms.Filter):
        def __init__(self, k):
            self.k = k

        def filter(self, x):
            return x % self.k != 0

    ds = MapDataset.range(100).to_iter_dataset().filter(Local(3)).window_shuffle(9, seed=1)
    workers = ds.mp_prefetch(MultiprocessingOptions(num_workers=1))
    assert state_after(ds, 5) == state_after(workers, 5)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loaders_compare_their_sources_and_operations_too(tmp_path, num_workers):
    def make(source, *operations):
        return DataLoader(
            data_source=source,
            sampler=IndexSampler(20, num_epochs=1, shuffle=True, seed=1),
            operations=operations,
            worker_count=num_workers,
        )

    def state_of(loader):
        with iter(loader) as iterator:
            next(iterator)
            return iterator.get_state()

    def restore(loader, state, **options):
        with iter(loader) as iterator:
            iterator.set_state(state, **options)

    state = state_of(make(range(20), Scale(1), Keep(3)))
    with pytest.warns(StateWarning, match=r"Scale \(by\), Keep \(k\)"):
        restore(make(range(20), Scale(2), Keep(4)), state)
    with pytest.warns(StateWarning, match="elements"):
        restore(make(list(range(20, 40))), state_of(make(list(range(20)))))
    lines(tmp_path, ["a", "b"])
    state = state_of(make(TextLinesDataSource(tmp_path / "a")))
    (tmp_path / "a").write_text((tmp_path / "a").read_text().replace("a 3", "b 3"))
    with pytest.raises(StateError, match="with other bytes"):
        restore(make(TextLinesDataSource(tmp_path / "a")), state)
    restore(make(TextLinesDataSource(tmp_path / "a")), state, strict=False)
    without = {k: v for k, v in json.loads(state).items() if k not in ("pipeline", "functions", "checksum")}
    restore(make(TextLinesDataSource(tmp_path / "a")), json.dumps(without).encode())  # as older states


def test_states_stay_small():
    ds = MapDataset.concatenate([MapDataset.source([i] * 9).map(Scale(i)) for i in range(200)])
    assert len(json.dumps(state_after(ds.to_iter_dataset()))) < 8000
    assert len(json.dumps(state_after(twenty(0).map(Scale(list(range(100_000)))).to_iter_dataset()))) < 1000
