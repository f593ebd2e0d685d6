"""Where bytes at rest become elements: one file per format."""

from headrace.protocols import RandomAccessDataSource as RandomAccessDataSource
from headrace.sources.array_record import ArrayRecordDataSource as ArrayRecordDataSource
from headrace.sources.arrays import ArrayDataSource as ArrayDataSource
from headrace.sources.ranges import RangeDataSource as RangeDataSource
from headrace.sources.shared import InMemoryDataSource as InMemoryDataSource
from headrace.sources.shared import SharedMemoryDataSource as SharedMemoryDataSource
