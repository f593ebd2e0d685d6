"""Tar files of samples, as WebDataset writes them: by index, in order, and decoded.

A sample is the files of one name up to its first dot, which follow one another in the archive: `a/1.jpg` and `a/1.cls`
are `{"__key__": "a/1", "jpg": b"…", "cls": b"…"}`. Names are keys and nothing else: no file is ever written.
"""

from headrace.sources.tar.decode import DecodeSample as DecodeSample
from headrace.sources.tar.random_access import TarDataSource as TarDataSource
from headrace.sources.tar.stream import TarIterDataset as TarIterDataset
