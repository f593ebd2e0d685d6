"""Names of the fields that describe a record."""

DATASET_INDEX = "_dataset_index"
EPOCH = "_epoch"
INDEX = "_index"
RECORD = "_record"
RECORD_KEY = "_record_key"
SEED = "_seed"
META_FEATURES = frozenset({INDEX, RECORD, SEED, EPOCH, RECORD_KEY, DATASET_INDEX})
