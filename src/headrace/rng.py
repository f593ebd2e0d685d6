"""Order and randomness by counter: every number here is a function of a seed and an index.

`index_shuffle` is a cycle-walking Feistel cipher, so a shuffle needs no memory and gives any index at once.
`CounterRng` is a Philox generator that moves to an index, so the numbers that an element draws do not depend on
earlier elements. No result depends on state that this module keeps.
"""

import array
import contextlib
import ctypes
import functools
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from headrace.errors import PipelineError

ROUNDS = 4
_MOST_ROUNDS = 1024
_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_SMALL_BITS = 16
_SHORT = 1 << (_SMALL_BITS - 2)
_FEW = 16  # up to this many passes over an index are cheaper one by one
_FEW_SMALL = 1 << 11
_LAST_FEW = 32  # once this few remain, they continue one by one
_ALONE = 1 << 11  # a group of this many indices gains nothing from being joined with others


def seed_sequence(seed: Any, count: int) -> list[Any]:
    """The first `count` words of C++'s `std::seed_seq{seed}`, as the standard defines it.

    For a uint64 array of seeds, each word is an array.
    """
    t = 11 if count >= 623 else 7 if count >= 68 else 5 if count >= 39 else 3 if count >= 7 else (count - 1) // 2
    p = (count - t) // 2
    q = p + t
    b = [0x8B8B8B8B] * count
    m = max(2, count)
    for k in range(m):
        x = b[k % count] ^ b[(k + p) % count] ^ b[(k - 1) % count]
        r1 = 1664525 * (x ^ (x >> 27)) & _MASK32
        r2 = (r1 + (1 if k == 0 else k % count + (seed if k == 1 else 0))) & _MASK32
        b[(k + p) % count] = (b[(k + p) % count] + r1) & _MASK32
        b[(k + q) % count] = (b[(k + q) % count] + r2) & _MASK32
        b[k % count] = r2
    for k in range(m, m + count):
        x = (b[k % count] + b[(k + p) % count] + b[(k - 1) % count]) & _MASK32
        r3 = 1566083941 * (x ^ (x >> 27)) & _MASK32
        r4 = (r3 - k % count) & _MASK32
        b[(k + p) % count] ^= r3
        b[(k + q) % count] ^= r4
        b[k % count] = r4
    return b


@functools.lru_cache(maxsize=256)
def _round_keys(seed: int, rounds: int) -> tuple[int, ...]:
    return tuple(seed_sequence(seed, rounds))


def _block_bits(max_index: int) -> int:
    """An even number of bits, at least 16, that can hold `max_index`."""
    bits = max(max_index.bit_length(), _SMALL_BITS)
    return bits + bits % 2


def index_shuffle(index: int, max_index: int, seed: int, rounds: int = ROUNDS) -> int:
    """The number at `index` in the permutation of `0..max_index` that belongs to `seed`.

    >>> sorted(index_shuffle(i, max_index=9, seed=42) for i in range(10))
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if not 0 <= index <= max_index:
        raise PipelineError(f"index must lie between 0 and max_index={max_index}; got {index}.")
    if not 0 <= seed < 1 << 32:
        raise PipelineError(f"The seed of index_shuffle must be between 0 and 2**32 - 1; got {seed}.")
    if rounds % 2 or not ROUNDS <= rounds <= _MOST_ROUNDS:
        raise PipelineError(f"rounds must be an even number from {ROUNDS} to {_MOST_ROUNDS}; got {rounds}.")
    if max_index == 0:
        return 0
    if max_index < 1 << _SMALL_BITS and rounds == ROUNDS:
        return _walk_one(index, max_index, _small_keys(seed))
    word = _block_bits(max_index) // 2
    mask = (1 << word) - 1
    keys = [k & mask for k in _round_keys(seed, rounds)]

    def f(x: int) -> int:
        r1 = (x << 1 | x >> (word - 1)) & mask
        r2 = (x << 2 | x >> (word - 2)) & mask
        r8 = (x << 8 | x >> (word - 8)) & mask
        return (r1 & r8) ^ r2

    while True:
        left = index >> word
        right = index & mask
        for i in range(0, rounds, 2):
            left ^= f(right) ^ keys[i]
            right ^= f(left) ^ keys[i + 1]
        index = left << word | right
        if index <= max_index:
            return index


def _feistel(bits: int, values: np.ndarray, round_keys: Any) -> np.ndarray:
    """One pass of the cipher over `values`, each below `2**bits`; a round's key is a number, or one for each value.

    `x * (2**w + 1)` has a word `x` of `w` bits twice, side by side, so shifts of it are rotations of `x`. The dtype has
    the `2w = bits` bits for this, so nothing overflows.
    """
    word = bits // 2
    dtype = np.dtype(np.uint16 if bits <= 16 else np.uint32 if bits <= 32 else np.uint64)
    mask = dtype.type((1 << word) - 1)
    twice = dtype.type((1 << word) + 1)
    keys = [np.asarray(key & int(mask), dtype) for key in round_keys]
    values = values.astype(dtype)
    left = values >> word
    right = values & mask
    a = values
    b = np.empty_like(values)
    c = np.empty_like(values)

    def mix(into: np.ndarray, x: np.ndarray, key: np.ndarray) -> None:
        np.multiply(x, twice, out=a)
        np.right_shift(a, word - 1, out=b)
        np.right_shift(a, word - 8, out=c)
        np.bitwise_and(b, c, out=b)
        np.right_shift(a, word - 2, out=c)
        np.bitwise_xor(b, c, out=b)
        np.bitwise_and(b, mask, out=b)
        np.bitwise_xor(b, key, out=b)
        np.bitwise_xor(into, b, out=into)

    for i in range(0, ROUNDS, 2):
        mix(left, right, keys[i])
        mix(right, left, keys[i + 1])
    out = left.astype(np.int64)
    out <<= word
    out |= right.astype(np.int64)
    return out


# A block of 16 bits has a cheaper pass. A key is XORed to a word after the word it depends on was read, so keys can be
# drawn out of a pair of rounds: `pair(left, right)` with keys `a, b` is `P[left ^ a, right] ^ (0, b)`, where `P` is the
# pair with keys of zero. So a pass is two lookups in a table, whatever the seed.


@functools.cache
def _pair_table() -> np.ndarray:
    """What two rounds with keys of zero make of each number of 16 bits."""
    left, right = np.divmod(np.arange(1 << _SMALL_BITS), 256)

    def f(x: np.ndarray) -> np.ndarray:
        rotated = (x << 1 | x >> 7) & 255
        twice = (x << 2 | x >> 6) & 255
        return (rotated & x) ^ twice

    left ^= f(right)
    right ^= f(left)
    return _read_only(left << 8 | right)


@functools.cache
def _pair_numbers() -> array.array:
    return array.array("H", _pair_table().astype(np.uint16).tobytes())


def _drawn_out(round_keys: Sequence[Any]) -> tuple[Any, Any, Any]:
    """The keys of a pass over 16 bits: what is XORed before, between and after its two lookups."""
    a, b, c, d = (key & 255 for key in round_keys)
    return a << 8, b | c << 8, d


@functools.lru_cache(maxsize=256)
def _small_keys(seed: int) -> tuple[int, int, int]:
    return _drawn_out(_round_keys(seed, ROUNDS))


def _walk_one(index: int, max_index: int, keys: tuple[int, int, int]) -> int:
    """`index_shuffle` within a block of 16 bits."""
    (before, between, after), pair = keys, _pair_numbers()
    while True:
        index = pair[pair[index ^ before] ^ between] ^ after
        if index <= max_index:
            return index


def _small_pass(values: np.ndarray, keys: Any) -> np.ndarray:
    """One pass of the cipher over values of 16 bits."""
    table = _pair_table()
    out = table.take(values ^ keys[0])
    out ^= keys[1]
    out = table.take(out)
    out ^= keys[2]
    return out


def shuffled_indices(indices: np.ndarray, max_index: int, seed: int) -> np.ndarray:
    """`index_shuffle` of every index in an int64 array; each must lie in `0..max_index`."""
    if len(indices) * _num_passes(max_index) <= (_FEW_SMALL if max_index < 1 << _SMALL_BITS else _FEW):
        return np.array([index_shuffle(i, max_index, seed) for i in indices.tolist()], np.int64)
    if max_index < _SHORT:
        return permutation(max_index + 1, seed)[indices]
    return _walk(indices, max_index, _block_bits(max_index), _round_keys(seed, ROUNDS))


def _num_passes(max_index: int) -> int:
    """How often the cipher is applied to an index of a short range, on average."""
    return max(1, (1 << _SMALL_BITS) // (max_index + 1))


def shuffled_together(
    indices: np.ndarray, counts: np.ndarray, max_indices: np.ndarray, seeds: np.ndarray
) -> np.ndarray:
    """`shuffled_indices` of many groups at once: `counts[g]` indices, one group's after the other's.

    Each group has its own range and seed, so passes cost little where many groups have few indices each.
    """
    out = np.empty_like(indices)
    ends = np.cumsum(counts)
    alone = counts >= np.minimum(max_indices, _ALONE)  # the whole of a short range is cheaper than so many walks
    for g in np.flatnonzero(alone).tolist():
        here = slice(int(ends[g] - counts[g]), int(ends[g]))
        out[here] = shuffled_indices(indices[here], int(max_indices[g]), int(seeds[g]))
    keys = np.array(seed_sequence(seeds.astype(np.uint64), ROUNDS), np.int64)
    bits = np.array([_block_bits(n) for n in max_indices.tolist()])
    group = np.repeat(np.arange(len(counts)), counts)
    for size in sorted(set(bits[~alone].tolist())):
        here = np.flatnonzero((~alone & (bits == size))[group])
        of = group[here]
        out[here] = _walk(indices[here], max_indices[of], size, keys[:, of])
    return out


def permutation(length: int, seed: int) -> np.ndarray:
    """The permutation of `range(length)` that belongs to `seed`, for lengths up to 65,536; read-only."""
    return _short_permutation(length, seed) if length <= _SHORT else _long_permutation(length, seed)


@functools.lru_cache(maxsize=256)
def _short_permutation(length: int, seed: int) -> np.ndarray:
    return _read_only(_walk_short(length, seed))


@functools.lru_cache(maxsize=16)
def _long_permutation(length: int, seed: int) -> np.ndarray:
    return _read_only(_walk(np.arange(length), length - 1, _SMALL_BITS, _round_keys(seed, ROUNDS)))


def _read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


def _walk(indices: np.ndarray, max_index: Any, bits: int, round_keys: Any) -> np.ndarray:
    """Applies the cipher to blocks of so many bits, and again to what lies outside.

    All indices have one `max_index` and a key for each round, or arrays say which ones each has.
    """
    small = bits == _SMALL_BITS
    is_array = isinstance(max_index, np.ndarray)
    keys = _drawn_out(round_keys) if small else round_keys
    keys = np.array(keys, np.int64)
    largest = np.asarray(max_index).astype(np.uint64)
    cipher = _small_pass if small else functools.partial(_feistel, bits)
    out = cipher(indices, keys)
    # With 64 bits, the upper half is negative as int64, so compare as uint64.
    outside = out.view(np.uint64) > largest
    here = np.arange(len(out))
    values = out
    while left := int(np.count_nonzero(outside)):
        if 4 * left <= 3 * len(here) or left <= _LAST_FEW:  # drop those that have arrived, not in each pass
            out[here] = values
            here = here[outside]
            values = values[outside]
            if is_array:
                keys = keys[:, outside]
                largest = largest[outside]
            outside = np.ones(left, bool)
        if small and left <= _LAST_FEW:
            each = np.broadcast_to(largest, left).tolist(), np.broadcast_to(keys.T, (left, 3)).tolist()
            values = np.array([_walk_one(*start) for start in zip(values.tolist(), *each, strict=True)], np.int64)
            break
        np.copyto(values, cipher(values, keys), where=outside)
        outside = values.view(np.uint64) > largest
    out[here] = values
    return out


def _walk_short(length: int, seed: int) -> np.ndarray:
    """The whole permutation, where most of the block lies outside and walks are long.

    It tabulates the cipher for the whole block and cuts the table to a quarter until it has `length` entries. Each cut
    follows the walks outside the quarter once, so those of the next cut are shorter.
    """
    step = _small_pass(np.arange(1 << _SMALL_BITS), _small_keys(seed))
    while len(step) > length:
        inside = max(length, len(step) // 4)
        out = step[:inside].copy()
        outside = np.flatnonzero(out >= inside)
        while outside.size:
            again = step[out[outside]]
            out[outside] = again
            outside = outside[again >= inside]
        step = out
    return step


def derive_seed(pairs: Sequence[tuple[int, int]]) -> int:
    """The seed of an operation from all pairs `(s, d)`: it comes `d` steps after a dataset seeded with `s`."""
    return int(np.random.SeedSequence([n for pair in pairs for n in pair]).generate_state(1)[0])


class CounterRng:
    """A Philox generator that can be moved to any index.

    >>> rng = CounterRng(seed=5)
    >>> int(rng.at(0).integers(1000)), int(rng.at(3).integers(1000)), int(rng.at(0).integers(1000))
    (864, 642, 864)
    """

    def __init__(self, seed: int):
        self._bits = np.random.Philox(seed)
        self._generator = np.random.Generator(self._bits)
        self.at = self._at_by_memory() if _memory_layout_is_known() else self._at_by_state

    def _at_by_state(self, index: int, op_seed: int = 0) -> np.random.Generator:
        state = self._bits.state
        state["state"]["counter"] = np.array([0, 0, op_seed, index], np.uint64)
        state["buffer_pos"], state["has_uint32"] = 4, 0
        self._bits.state = state
        return self._generator

    def _at_by_memory(self):
        """Writes the counter where Philox keeps it: that takes 0.2 µs, and the `state` setter 4 µs."""
        (counter, _, flags), generator = _memory_of(self._bits), self._generator

        def at(index: int) -> np.random.Generator:
            counter[0] = 0
            counter[3] = index
            flags[_BUFFER_POS] = 4
            flags[_HAS_UINT32] = 0
            return generator

        return at


class KeyedRng:
    """A Philox generator that starts anew with any key.

    >>> rng = KeyedRng()
    >>> int(rng.at(7).integers(1000)), int(rng.at(8).integers(1000)), int(rng.at(7).integers(1000))
    (163, 312, 163)
    """

    def __init__(self):
        self._bits = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._bits)
        self.at = self._at_by_memory() if _memory_layout_is_known() else self._at_by_state

    def _at_by_state(self, key: int) -> np.random.Generator:
        self._bits.state = np.random.Philox(key=key).state
        return self._generator

    def _at_by_memory(self):
        (counter, words, flags), generator = _memory_of(self._bits), self._generator
        zeros = memoryview(bytes(32)).cast("Q")

        def at(key: int) -> np.random.Generator:
            counter[:] = zeros
            words[0], words[1] = key & _MASK64, key >> 64
            flags[_BUFFER_POS] = 4
            flags[_HAS_UINT32] = 0
            return generator

        return at


class _PhiloxState(ctypes.Structure):
    """The first fields of NumPy's C struct, up to the last that is written."""

    _fields_ = (
        ("counter", ctypes.POINTER(ctypes.c_uint64 * 4)),
        ("key", ctypes.POINTER(ctypes.c_uint64 * 2)),
        ("buffer_pos", ctypes.c_int),
        ("buffer", ctypes.c_uint64 * 4),
        ("has_uint32", ctypes.c_int),
    )


_BUFFER_POS, _HAS_UINT32 = (getattr(_PhiloxState, name).offset // 4 for name in ("buffer_pos", "has_uint32"))


def _memory_of(bits: np.random.Philox) -> list[Any]:
    """The counter, the key and the flags, as arrays of C numbers: these are faster to write to than fields."""
    struct = _PhiloxState.from_address(bits.ctypes.state_address)
    parts: Any = (struct.counter.contents, "Q"), (struct.key.contents, "Q"), (struct, "i")
    return [memoryview(memory).cast("B").cast(kind) for memory, kind in parts]


@functools.cache
def _memory_layout_is_known() -> bool:
    """Whether writing counters and keys in memory gives what the `state` setter gives."""
    same = []
    for kind in (CounterRng, KeyedRng):
        slow = kind.__new__(kind)
        fast = kind.__new__(kind)
        for rng in (slow, fast):
            rng._bits = np.random.Philox(7)
            rng._generator = np.random.Generator(rng._bits)
            rng._generator.integers(100, dtype=np.int32)
        at = fast._at_by_memory()
        for index in (0, 1, 2**40):
            a = slow._at_by_state(index)
            b = at(index)
            same.append(a.integers(2**31, dtype=np.int32) == b.integers(2**31, dtype=np.int32))
            same.append(a.normal() == b.normal())
    return all(same)


class RngPool:
    """Generators by index, for threads that draw at the same time.

    >>> pool = RngPool(seed=5)
    >>> rng = pool.acquire_rng(3)
    >>> int(rng.integers(1000))
    642
    >>> pool.release_rng(rng)
    """

    def __init__(self, seed: int):
        self._seed = seed
        self._free: list[CounterRng] = []
        self._lent: dict[int, CounterRng] = {}
        self._lock = threading.Lock()

    def acquire_rng(self, index: int, *, op_seed: int = 0) -> np.random.Generator:
        """A generator at `index`, the caller's until released; each `op_seed` gives other numbers."""
        with self._lock:
            rng = self._free.pop() if self._free else CounterRng(self._seed)
            generator = rng._at_by_state(index, op_seed)
            self._lent[id(generator)] = rng
            return generator

    def release_rng(self, rng: np.random.Generator) -> None:
        """Takes a generator back."""
        with self._lock:
            self._free.append(self._lent.pop(id(rng)))


# ----------------------------------------------------------------------------------------------------- global rngs
# The random number generators that all code of a process shares: of `random`, of NumPy, and of torch on the CPU.
#
# Of torch it seeds the generator of the CPU only: `torch.manual_seed` would also seed those of GPUs, which training
# uses.


T = TypeVar("T")
_lock = threading.RLock()


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()  # a thread of the parent may have held the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


@contextlib.contextmanager
def seeded_globals() -> "Iterator[SeededGlobals]":
    """Lets calls find the generators seeded; at the end, these are as they were. Other threads wait meanwhile.

    >>> with seeded_globals() as seeded:
    ...     first = seeded.call(np.random.default_rng(1), random.random)
    ...     again = seeded.call(np.random.default_rng(1), random.random)
    >>> first == again != random.random()
    True
    """
    with _lock:
        seeded = SeededGlobals()
        try:
            yield seeded
        finally:
            seeded.put_back()


class SeededGlobals:
    """The states of the generators, as they were at first."""

    def __init__(self):
        self._random = random.getstate()
        self._numpy = np.random.get_state(legacy=False)
        generator = _torch_generator()
        self._torch = None if generator is None else generator.get_state()

    def call(self, rng: np.random.Generator, function: Callable[..., T], *args: Any) -> T:
        """The result of a call that finds generators seeded from `rng`."""
        words: list[int] = rng.bit_generator.random_raw(3).tolist()
        _seed(words)
        result = function(*args)
        generator = _torch_generator()
        if self._torch is not None or generator is None:
            return result
        # The call has imported torch, and found its generator as it is after an import: call again, now seeded.
        self._torch = generator.manual_seed(generator.initial_seed()).get_state()
        _seed(words)
        return function(*args)

    def put_back(self) -> None:
        """Sets the generators to these states."""
        random.setstate(self._random)
        np.random.set_state(self._numpy)
        if self._torch is not None:
            _torch_generator().set_state(self._torch)


def _seed(words: list[int]) -> None:
    random.seed(words[0])
    np.random.seed(words[1] >> 32)
    generator = _torch_generator()
    if generator is not None:
        generator.manual_seed(words[2] >> 1)


def _torch_generator() -> Any:
    """The generator of torch on the CPU; `None` unless somebody has imported torch."""
    return getattr(sys.modules.get("torch"), "default_generator", None)
