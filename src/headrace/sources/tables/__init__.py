"""Tables in files as sources: Parquet, Arrow IPC and Feather, CSV."""

from headrace.sources.tables.arrow import ArrowDataSource as ArrowDataSource
from headrace.sources.tables.base import TableDataSource as TableDataSource
from headrace.sources.tables.csv import CsvDataSource as CsvDataSource
from headrace.sources.tables.parquet import ParquetDataSource as ParquetDataSource
