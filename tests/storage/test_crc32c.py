"""CRC-32C with NumPy, against a loop over the bits and against google-crc32c."""

import numpy as np
import pytest

from headrace.sources.tfrecord import crc32c, masked, masked_crc_of_length, masked_crcs_of_lengths


@pytest.mark.parametrize("length", [*range(6), 64, 65, 511, 512, 513, 1024, 1027, 33_300])
def test_a_checksum_of_many_bytes_is_that_of_a_loop_over_them(length):
    data = np.random.default_rng(length).bytes(length)
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    assert crc32c(data) == crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("length", [0, 1, 9, 64, 65, 1000, 100_001])
def test_a_checksum_is_that_of_google_crc32c(length):
    google_crc32c = pytest.importorskip("google_crc32c")
    data = np.random.default_rng(length).bytes(length)
    assert crc32c(data) == google_crc32c.value(data)


def test_checksums_of_lengths_are_those_of_their_bytes():
    lengths = [0, 1, 255, 256, 10**6, 2**40 + 3]
    expected = [masked(crc32c(length.to_bytes(8, "little"))) for length in lengths]
    assert [masked_crc_of_length(length) for length in lengths] == expected
    assert masked_crcs_of_lengths(np.array(lengths)).tolist() == expected
