"""Order and randomness by counter: every number here is a function of a seed and an index.

`shuffled_index` is a cycle-walking Feistel cipher, so a shuffle needs no memory and any index can be asked
for at once. `CounterRng` is a Philox generator that is moved to an index, so the numbers that an element
draws do not depend on what came before it. Nothing in this module keeps state that a result depends on.
"""

import ctypes
import functools
import threading
from collections.abc import Sequence

import numpy as np

from headrace.errors import PipelineError

ROUNDS = 4
_MOST_ROUNDS = 1024
_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_SMALL_BITS = 16
_SHORT = 1 << (_SMALL_BITS - 2)


def seed_sequence(seed: int, count: int) -> list[int]:
    """The first `count` words of C++'s `std::seed_seq{seed}`, as the standard defines it."""
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
    """Where `index` goes in the permutation of `0..max_index` that `seed` names.

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
    word = _block_bits(max_index) // 2
    mask = (1 << word) - 1
    keys = [k & mask for k in _round_keys(seed, rounds)]

    def f(x: int) -> int:
        r1 = (x << 1 | x >> (word - 1)) & mask
        r2 = (x << 2 | x >> (word - 2)) & mask
        r8 = (x << 8 | x >> (word - 8)) & mask
        return (r1 & r8) ^ r2

    while True:
        left, right = index >> word, index & mask
        for i in range(0, rounds, 2):
            left ^= f(right) ^ keys[i]
            right ^= f(left) ^ keys[i + 1]
        index = left << word | right
        if index <= max_index:
            return index


def _feistel(values: np.ndarray, bits: int, seed: int) -> np.ndarray:
    """One pass of the cipher over `values`, each below `2**bits`.

    A word `x` of `w` bits is written twice side by side, `x * (2**w + 1)`, so that its rotations are plain
    shifts of that. This needs `2w = bits` bits, which the dtype is chosen to have: nothing overflows.
    """
    word = bits // 2
    dtype = np.dtype(np.uint16 if bits <= 16 else np.uint32 if bits <= 32 else np.uint64)
    mask, twice = dtype.type((1 << word) - 1), dtype.type((1 << word) + 1)
    keys = [dtype.type(k & int(mask)) for k in _round_keys(seed, ROUNDS)]
    values = values.astype(dtype)
    left, right = values >> word, values & mask
    a, b, c = values, np.empty_like(values), np.empty_like(values)

    def mix(into: np.ndarray, x: np.ndarray, key: np.generic) -> None:
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


def shuffled_indices(indices: np.ndarray, max_index: int, seed: int) -> np.ndarray:
    """`index_shuffle` of every index in an int64 array; each must lie in `0..max_index`."""
    steps = len(indices) * max(1, (1 << _SMALL_BITS) // (max_index + 1))
    if steps <= 128:
        return np.array([index_shuffle(i, max_index, seed) for i in indices.tolist()], np.int64)
    if max_index < _SHORT:
        return permutation(max_index + 1, seed)[indices]
    return _walk(indices, max_index, seed)


def permutation(length: int, seed: int) -> np.ndarray:
    """The whole permutation of `range(length)` that `seed` names, for lengths up to 65,536; read-only."""
    return _short_permutation(length, seed) if length <= _SHORT else _long_permutation(length, seed)


@functools.lru_cache(maxsize=256)
def _short_permutation(length: int, seed: int) -> np.ndarray:
    return _read_only(_walk_short(length, seed))


@functools.lru_cache(maxsize=16)
def _long_permutation(length: int, seed: int) -> np.ndarray:
    return _read_only(_walk(np.arange(length), length - 1, seed))


def _read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


def _walk(indices: np.ndarray, max_index: int, seed: int) -> np.ndarray:
    """The cipher, again and again for what it puts outside: at most three quarters of a pass."""
    bits = _block_bits(max_index)
    out = _feistel(indices, bits, seed)
    # In blocks of 64 bits the upper half is negative as int64: it is compared as what it is.
    outside = np.flatnonzero(out.view(np.uint64) > max_index)
    while outside.size:
        again = _feistel(out[outside], bits, seed)
        out[outside] = again
        outside = outside[again.view(np.uint64) > max_index]
    return out


def _walk_short(length: int, seed: int) -> np.ndarray:
    """The same where most of the block lies outside and walks are long.

    The cipher is tabulated for the whole block, and the table cut to a quarter again and again: what a walk
    does outside the quarter is walked once, and the next quarter is reached by shorter walks.
    """
    step = _feistel(np.arange(1 << _SMALL_BITS), _SMALL_BITS, seed)
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
    """The seed of an operation that stands `d` steps after a dataset seeded with `s`, for all such `(s, d)`."""
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
        state["buffer_pos"] = 4
        state["has_uint32"] = 0
        self._bits.state = state
        return self._generator

    def _at_by_memory(self):
        """Writes the counter where Philox keeps it: 0.2 µs, where its `state` setter takes 4 µs."""
        struct = _PhiloxState.from_address(self._bits.ctypes.state_address)
        counter = _writable(struct.counter.contents, "Q")
        flags = _writable(struct, "i")
        buffer_pos, has_uint32 = (getattr(_PhiloxState, name).offset // 4 for name in ("buffer_pos", "has_uint32"))
        generator = self._generator

        def at(index: int) -> np.random.Generator:
            counter[0] = 0
            counter[3] = index
            flags[buffer_pos] = 4
            flags[has_uint32] = 0
            return generator

        return at


class KeyedRng:
    """A Philox generator that can be given any key, and then starts anew.

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
        struct = _PhiloxState.from_address(self._bits.ctypes.state_address)
        counter, words = _writable(struct.counter.contents, "Q"), _writable(struct.key.contents, "Q")
        flags = _writable(struct, "i")
        buffer_pos, has_uint32 = (getattr(_PhiloxState, name).offset // 4 for name in ("buffer_pos", "has_uint32"))
        generator, zeros = self._generator, memoryview(bytes(32)).cast("Q")

        def at(key: int) -> np.random.Generator:
            counter[:] = zeros
            words[0], words[1] = key & _MASK64, key >> 64
            flags[buffer_pos] = 4
            flags[has_uint32] = 0
            return generator

        return at


class _PhiloxState(ctypes.Structure):
    """NumPy's C struct, as far as the fields that are written."""

    _fields_ = (
        ("counter", ctypes.POINTER(ctypes.c_uint64 * 4)),
        ("key", ctypes.POINTER(ctypes.c_uint64 * 2)),
        ("buffer_pos", ctypes.c_int),
        ("buffer", ctypes.c_uint64 * 4),
        ("has_uint32", ctypes.c_int),
    )


def _writable(memory: ctypes.Structure | ctypes.Array, kind: str) -> memoryview:
    """Memory as an array of C numbers, cheaper to write to than fields are."""
    return memoryview(memory).cast("B").cast(kind)  # type: ignore[arg-type]


@functools.cache
def _memory_layout_is_known() -> bool:
    """Whether writing counters and keys in memory gives what the `state` setter gives."""
    same = []
    for kind in (CounterRng, KeyedRng):
        slow, fast = kind.__new__(kind), kind.__new__(kind)
        for rng in (slow, fast):
            rng._bits = np.random.Philox(7)
            rng._generator = np.random.Generator(rng._bits)
            rng._generator.integers(100, dtype=np.int32)
        at = fast._at_by_memory()
        for index in (0, 1, 2**40):
            a, b = slow._at_by_state(index), at(index)
            same.append(a.integers(2**31, dtype=np.int32) == b.integers(2**31, dtype=np.int32))
            same.append(a.normal() == b.normal())
    return all(same)


class RngPool:
    """Generators by index, for threads that draw at once.

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
        """A generator at `index`, not shared with anybody until it is released; another for each `op_seed`."""
        with self._lock:
            rng = self._free.pop() if self._free else CounterRng(self._seed)
            generator = rng._at_by_state(index, op_seed)
            self._lent[id(generator)] = rng
            return generator

    def release_rng(self, rng: np.random.Generator) -> None:
        """Takes a generator back."""
        with self._lock:
            self._free.append(self._lent.pop(id(rng)))
