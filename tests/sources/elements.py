"""Random elements, and whether what is read is what was written."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

NUMBERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float16", "float32", "float64")
LETTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.text(LETTERS, max_size=6)
INTS = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text("abc/. é\n", min_size=1, max_size=3)


def is_same(a, b):
    """Whether values, dtypes, shapes and nesting are equal; Python's numbers are as NumPy's, and those as arrays of them."""
    if isinstance(a, dict):
        return type(b) is dict and a.keys() == b.keys() and all(is_same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple):
        return type(b) is type(a) and len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, np.bytes_ | np.str_) or (isinstance(a, np.ndarray) and not a.ndim and a.dtype.kind in "SU"):
        a = a.item()
    if not isinstance(a, bool | int | float | np.generic | np.ndarray):
        return type(b) is type(a) and a == b
    if not isinstance(b, bool | int | float | np.generic | np.ndarray):
        return False
    x, y = np.asarray(a), np.asarray(b)
    if not x.ndim:
        x = x.astype(x.dtype.newbyteorder("="))  # scalars have no byte order
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    if x.dtype.kind == "O":
        return all(map(is_same, x.ravel().tolist(), y.ravel().tolist()))
    return x.tobytes() == y.tobytes() or np.array_equal(x, y, equal_nan=x.dtype.kind in "fmM")


def assert_same(written, read):
    written, read = list(written), list(read)
    assert len(written) == len(read)
    for a, b in zip(written, read, strict=True):
        assert is_same(a, b), f"{a!r} came back as {b!r}"


def numbers(dtype, *, nan):
    """Scalars of a dtype."""
    finite = {} if nan or not dtype.startswith("float") else {"allow_nan": False, "allow_infinity": False}
    return arrays_of.from_dtype(np.dtype(dtype), **finite)


def arrays(dtype, num_axes, *, nan):
    """Arrays of a dtype, some without values."""
    shapes = st.tuples(*[st.integers(0, 3)] * num_axes)
    return shapes.flatmap(lambda shape: arrays_of.arrays(dtype, shape, elements=numbers(dtype, nan=nan)))


@st.composite
def kinds(draw, *, binary=True, nan=True, depth=2):
    """Strategies for values of one kind, as the rows of a column have them.

    Args:
        binary: Whether there are bytes.
        nan: Whether there are floats that are no numbers.
        depth: How deep values are nested.
    """
    inner = lambda: draw(kinds(binary=binary, nan=nan, depth=depth - 1))  # noqa: E731
    dtype = draw(st.sampled_from(NUMBERS))
    leaves = {
        "python": st.sampled_from([INTS, st.floats(allow_nan=nan, allow_infinity=nan), st.booleans()]),
        "text": st.just(TEXT),
        "bytes": st.just(st.binary(max_size=6) if binary else TEXT.map(str.encode)),
        "numpy": st.just(numbers(dtype, nan=nan)),
        "array": st.integers(1, 3).map(lambda axes: trailing(dtype, axes, nan=nan)),
        "texts": st.just(st.lists(TEXT, max_size=3).map(lambda texts: np.array(texts, object))),
        "time": st.just(st.integers(-(2**40), 2**40).map(lambda t: np.datetime64(t, "us"))),
    }
    nested = ["dict", "list", "tuple", "pair", "maybe"] if depth else []
    kind = draw(st.sampled_from([*leaves, *nested]))
    if kind in leaves:
        return draw(leaves[kind])
    if kind == "dict":
        return st.fixed_dictionaries(
            {name: inner() for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))}
        )
    if kind == "pair":
        return st.tuples(inner(), inner())
    if kind == "maybe":
        return st.none() | inner()
    items = st.lists(inner(), max_size=3)
    return items if kind == "list" else items.map(tuple)


def trailing(dtype, num_axes, *, nan):
    """Arrays of which only the first size differs, as of boxes in images: those without values keep the others."""
    return st.integers(0, 3).flatmap(
        lambda size: arrays_of.arrays(dtype, (size, *(2,) * (num_axes - 1)), elements=numbers(dtype, nan=nan))
    )


@st.composite
def rows(draw, **options):
    """Elements of one kind: dicts, or anything else."""
    if draw(st.integers(0, 3)):
        names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
        one = st.fixed_dictionaries({name: draw(kinds(**options)) for name in names})
    else:
        one = draw(kinds(**options)).filter(lambda value: value is not None and not isinstance(value, bytes))
    return draw(st.lists(one, min_size=1, max_size=5))


def anything():
    """Values of all kinds, side by side."""
    number = st.sampled_from(NUMBERS).flatmap(lambda dtype: numbers(dtype, nan=True))
    array = st.tuples(st.sampled_from([*NUMBERS, "uint64", ">i4", "S3", "U2", "M8[s]", "c8"]), st.integers(0, 3))
    made = array.flatmap(lambda how: arrays_of.arrays(how[0], st.tuples(*[st.integers(0, 2)] * how[1])))
    leaves = st.none() | st.booleans() | INTS | st.floats() | TEXT | st.binary(max_size=5) | number | made
    leaves |= st.integers() | st.text(max_size=3) | st.complex_numbers() | st.dates() | st.datetimes()
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(NAMES | st.sampled_from(["__headrace__", ""]), inner, max_size=3)
            | st.dictionaries(st.integers(0, 2), inner, max_size=2)
        ),
        max_leaves=6,
    )
