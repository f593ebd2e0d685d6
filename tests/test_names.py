"""The public names: all that Grain has, where it has them, with its arguments or more; and what a change may not lose."""

import importlib
import inspect
import re
import subprocess
import sys

import grain
import grain.python
import pytest

import headrace

NAMES = {
    "": """DataLoader DataLoaderIterator DatasetIterator IterDataset MapDataset MultiprocessingOptions ReadOptions Record
        RecordMetadata config load checkpoint constants experimental multiprocessing python samplers sharding sources
        transforms AUTOTUNE DatasetOptions WeightSchedule as_grain device monitoring text""",
    "text": "Tokenize",
    "checkpoint": "CheckpointHandler CheckpointRestore CheckpointSave",
    "constants": "DATASET_INDEX EPOCH INDEX META_FEATURES RECORD RECORD_KEY SEED",
    "multiprocessing": "MultiprocessingOptions SharedMemoryArray SharedMemoryArrayMetadata",
    "samplers": "IndexSampler Sampler SequentialSampler",
    "sharding": "NoSharding ShardByJaxProcess ShardOptions",
    "sources": """Address ArrayDataSource ArrayRecordDataSource ArrowDataSource BagzDataSource CsvDataSource
        ExampleDataSource ExampleParser Feature parse_example parse_sequence_example TorchDataSource
        Hdf5DataSource HuggingFaceDataSource HuggingFaceIterDataset IdxDataSource ImageFolderDataSource
        InMemoryDataSource JsonLinesDataSource JsonLinesIterDataset NpyDataSource NpzDataSource ParquetDataSource
        ParquetIterDataset RandomAccessDataSource RangeDataSource SharedMemoryDataSource SqlDataSource
        TFRecordDataSource TFRecordIterDataset TableBatches TextLinesDataSource TextLinesIterDataset TfdsDataSource
        TorchIterDataset ZarrDataSource from_generator open shuffled_groups write_array_record write_parquet
        write_tfrecord""",
    "transforms": """Batch DatasetSelectionMap Filter FlatMap Map MapWithIndex RandomMap TfRandomMap Transformation
        Transformations""",
    "experimental": """BOSHandling BestFitPackIterDataset CacheIterDataset ConcatThenSplitIterDataset DatasetOptions
        ElasticIterator ExecutionTrackingMode FirstFitPackIterDataset FlatMapIterDataset FlatMapMapDataset
        FlatMapTransform InterleaveIterDataset LimitIterDataset MapWithIndexTransform PackAndBatchOperation
        ParquetIterDataset PerformanceConfig RebatchIterDataset RepeatIterDataset RngPool ShapeDtypeStruct
        ShapeDtypeStructProtocol TFRecordIterDataset ThreadPrefetchDatasetIterator ThreadPrefetchIterDataset
        WindowShuffleIterDataset WindowShuffleMapDataset WithOptionsIterDataset ZipIterDataset ZipMapDataset
        apply_transformations assert_equal_output_after_checkpoint batch_and_pad device_put get_element_spec
        get_next_index index_shuffle multithread_prefetch pick_performance_config set_next_index""",
    "python": """ArrayRecordDataSource Batch BatchOperation DATASET_INDEX DataLoader DatasetIterator DatasetSelectionMap
        EPOCH FilterOperation FilterTransform INDEX InMemoryDataSource IndexSampler IterDataset META_FEATURES MapDataset
        MapOperation MapTransform MapWithIndexTransform MultiprocessingOptions NoSharding Operation
        PyGrainCheckpointHandler PyGrainCheckpointRestore PyGrainCheckpointSave PyGrainDatasetIterator RECORD RECORD_KEY
        RandomAccessDataSource RandomMapOperation RandomMapTransform RangeDataSource ReadOptions Record RecordMetadata
        SEED Sampler SequentialSampler ShardByJaxProcess ShardOptions SharedMemoryArray Transformation Transformations
        config experimental load BatchTransform FlatMapTransform GrainCheckpointHandler GrainCheckpointRestore
        GrainCheckpointSave DataLoaderIterator TfRandomMapTransform sharding""",
}
METHODS = {
    "MapDataset": """source range mix select_from_datasets concatenate apply batch filter map map_with_index parents
        random_map repeat seed shuffle slice to_iter_dataset""",
    "IterDataset": """mix apply batch filter map map_with_index mp_prefetch parents prefetch random_map seed""",
    "DatasetIterator": "close get_state load save set_state start_prefetch",
    "DataLoader": "multiprocessing_options",
    "DataLoaderIterator": "get_state load save set_state start_prefetch",
}
NEEDS_ORBAX = ("CheckpointHandler", "CheckpointRestore", "CheckpointSave")
# What the wheel lets be given that is its own affair, or that a protocol's metaclass shows.
NOT_COMPARED = {"_cur_batch", "args", "kwargs", "_"}


def namespace(package, name):
    return importlib.import_module(f"{package.__name__}.{name}" if name else package.__name__)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name):
    module = namespace(headrace, name)
    for each in NAMES[name].split():
        if each.endswith(NEEDS_ORBAX):
            pytest.importorskip("orbax.checkpoint")
        assert getattr(module, each) is not None, f"{module.__name__}.{each}"


@pytest.mark.parametrize("name", ["", "checkpoint", "experimental", "python", "sources"])
def test_no_public_name_appears_unseen(name):
    """In the modules that are names only."""
    module = namespace(headrace, name)
    exported = re.findall(
        r"import \w+ as ([a-zA-Z]\w*)|^(?:class|def) ([a-zA-Z]\w*)|^([a-zA-Z]\w*) = ", inspect.getsource(module), re.M
    )
    later = getattr(module, "_MODULE_OF", ())
    assert {each for groups in exported for each in groups if each} | {*later} <= set(NAMES[name].split())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "text"])
def test_the_wheels_names_are_all_here(name):
    theirs = namespace(grain, name)
    missing = [
        each
        for each in dir(theirs)
        if not each.startswith("_")
        and not inspect.ismodule(getattr(theirs, each))
        and not hasattr(namespace(headrace, name), each)
    ]
    assert missing == []


def parameters(thing):
    try:
        return inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return {}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "text"])
def test_the_wheels_arguments_are_accepted(name):
    ours, theirs = namespace(headrace, name), namespace(grain, name)
    for each in NAMES[name].split():
        if not callable(getattr(theirs, each, None)):
            continue
        if isinstance(getattr(theirs, each), type) and issubclass(getattr(theirs, each), __import__("enum").Enum):
            assert list(getattr(ours, each).__members__) == list(getattr(theirs, each).__members__)
            continue
        mine = parameters(getattr(ours, each))
        if any(p.kind is p.VAR_KEYWORD for p in mine.values()):
            continue
        lacking = set(parameters(getattr(theirs, each))) - set(mine) - NOT_COMPARED
        assert not lacking, f"{name}.{each} lacks {lacking}"


@pytest.mark.parametrize("kind", METHODS)
def test_methods_take_the_wheels_arguments(kind):
    for each in METHODS[kind].split():
        mine, theirs = getattr(getattr(headrace, kind), each), getattr(getattr(grain, kind), each)
        lacking = set(parameters(theirs)) - set(parameters(mine)) - NOT_COMPARED
        assert not lacking or each == "prefetch", f"{kind}.{each} lacks {lacking}"


def test_the_two_namespaces_have_the_same_objects():
    assert headrace.python.DataLoader is headrace.DataLoader
    assert headrace.python.MapTransform is headrace.transforms.Map is headrace.MapTransform
    assert headrace.python.sharding.NoSharding is headrace.NoSharding
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'nothing'"):
        headrace.nothing  # noqa: B018
    with pytest.raises(ImportError):
        from headrace.python import nothing  # noqa: F401
    assert "PyGrainCheckpointSave" in dir(headrace.python)


def test_as_grain_is_headrace_until_its_end():
    real = sys.modules["grain"]
    with headrace.as_grain() as package:
        import grain as inside
        import grain.experimental
        import grain.python as older
        from grain.checkpoint import CheckpointHandler  # noqa: F401  (Orbax is here)

        assert inside is package is headrace
        assert older is headrace.python
        assert inside.experimental.index_shuffle is headrace.experimental.index_shuffle
    assert sys.modules["grain"] is real
    assert not any(name.startswith("grain.") and module is headrace.python for name, module in sys.modules.items())


def test_as_grain_called_stays():
    script = (
        "import headrace; headrace.as_grain(); import grain.python as g; print(g.DataLoader is headrace.DataLoader)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "True\n"


def test_importing_loads_no_optional_dependency():
    script = (
        "import sys, headrace, headrace.python, headrace.experimental; "
        "print([m for m in ('jax', 'torch', 'orbax', 'pyarrow', 'array_record', 'tensorflow', 'grain', 'flax') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "[]\n"


MY_PIPELINE = """
import grain.python as grain

class Draw(grain.RandomMapTransform):
    def random_map(self, element, rng):
        return element, int(rng.integers(1000))

def make(worker_count):
    return grain.DataLoader(data_source=range(8), sampler=grain.IndexSampler(8, num_epochs=1, seed=3),
                            operations=[Draw()], worker_count=worker_count)
"""


@pytest.mark.parametrize(
    "way", ["headrace.as_grain(); import my_pipeline", "with headrace.as_grain(): import my_pipeline"]
)
def test_workers_import_as_grain_what_was_imported_so(tmp_path, way):
    (tmp_path / "my_pipeline.py").write_text(MY_PIPELINE)
    script = f"import headrace\n{way}\nprint(list(my_pipeline.make(2)) == list(my_pipeline.make(0)))"
    (tmp_path / "script.py").write_text(script)
    run = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert run.stdout == "True\n", run.stderr[-2000:]


def test_any_module_of_grain_is_headraces():
    spec = headrace.loader.__spec__
    with headrace.as_grain():
        import grain.loader
        import grain.python.experimental as nested

        assert nested is headrace.experimental
        assert grain.loader is headrace.loader
        with pytest.raises(ModuleNotFoundError, match="Headrace stands for it"):
            import grain.nothing
    assert headrace.loader.__name__ == "headrace.loader"
    assert headrace.loader.__spec__ is spec
    assert "MapTransform" in dir(headrace)
