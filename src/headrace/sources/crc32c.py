"""CRC-32C, which TFRecord files use: by google-crc32c if it is installed, otherwise by NumPy."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.errors import available

POLYNOMIAL = 0x82F63B78  # of CRC-32C, bits reversed
ROW_BYTES = 512
PIECE_BYTES = 64 * ROW_BYTES  # small enough for the CPU cache
SHORT_BYTES = 64  # up to here, a loop is faster than NumPy


def masked(crc: Any) -> Any:
    """A checksum, or an array of them, as the format stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def checksum() -> Callable[[bytes], int]:
    """The fastest function for the CRC-32C of bytes: google-crc32c if it is installed, otherwise `crc32c` below."""
    module = available("google_crc32c")
    return module.value if module is not None and module.implementation == "c" else crc32c


@functools.lru_cache(maxsize=1 << 16)
def masked_crc_of_length(length: int) -> int:
    """The checksum of a length; cached, since lengths recur."""
    return masked(crc32c(length.to_bytes(8, "little")))


def masked_crcs_of_lengths(lengths: np.ndarray) -> np.ndarray:
    """The same for many."""
    rows = lengths.astype("<u8").view(np.uint8).reshape(-1, 8)
    return masked(np.array(_crcs_of_rows(rows), np.uint32) ^ np.uint32(_after_zeros(0xFFFFFFFF, 8) ^ 0xFFFFFFFF))


def crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    if len(data) <= SHORT_BYTES:
        table = _table()
        for byte in data:
            crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        return crc ^ 0xFFFFFFFF
    pieces = np.frombuffer(data, np.uint8)
    cuts = range(len(data) % ROW_BYTES, len(data), PIECE_BYTES)
    for piece in np.split(pieces, cuts):
        width = min(ROW_BYTES, len(piece))
        for row in _crcs_of_rows(piece.reshape(-1, width)) if width else ():
            crc = _after_zeros(crc, width) ^ row
    return crc ^ 0xFFFFFFFF


def _crcs_of_rows(rows: np.ndarray) -> list[int]:
    """The checksum of each row: it is linear, so each byte contributes a number that depends on its place."""
    places = np.arange(256 * (rows.shape[1] - 1), -1, -256)
    return np.bitwise_xor.reduce(_tables_by_place().take(rows + places), axis=1).tolist()


def _after_zeros(crc: int, count: int) -> int:
    """A checksum after `count` more zero bytes."""
    tables = _tables_by_place()
    out = crc >> 8 * count
    for i in range(min(4, count)):
        out ^= tables.item(count - 1 - i, crc >> 8 * i & 0xFF)
    return out


@functools.cache
def _table() -> list[int]:
    """The checksum after each byte, from zero."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(POLYNOMIAL), table >> 1)
    return table.tolist()


@functools.cache
def _tables_by_place() -> np.ndarray:
    """The same with `i` zero bytes after it, in row `i`."""
    tables = np.empty((ROW_BYTES, 256), np.uint32)
    tables[0] = _table()
    for i in range(1, ROW_BYTES):
        tables[i] = tables[0][tables[i - 1] & 0xFF] ^ tables[i - 1] >> 8
    return tables
