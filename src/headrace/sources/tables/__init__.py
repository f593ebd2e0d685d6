"""Tables in files (Parquet, Arrow IPC and Feather, CSV): as sources, as batches of columns, and shuffled."""

from headrace.sources.tables.arrow import ArrowDataSource as ArrowDataSource
from headrace.sources.tables.base import TableDataSource as TableDataSource
from headrace.sources.tables.batches import TableBatches as TableBatches
from headrace.sources.tables.batches import shuffled_groups as shuffled_groups
from headrace.sources.tables.csv import CsvDataSource as CsvDataSource
from headrace.sources.tables.parquet import ParquetDataSource as ParquetDataSource
