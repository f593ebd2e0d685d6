"""Tables as streams: rows of Parquet files, batches of columns of any table, and rows in a random order of groups."""

from headrace.sources.parquet.batches import TableBatches as TableBatches
from headrace.sources.parquet.groups import shuffled_groups as shuffled_groups
from headrace.sources.parquet.rows import ParquetIterDataset as ParquetIterDataset
