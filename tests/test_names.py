"""The public names: all that Grain has, where it has them, with its arguments or more; and what a change may not lose."""

import importlib
import inspect
import json
import re
import subprocess
import sys

import grain
import grain.experimental
import grain.python
import pytest

import headrace
from headrace.sources.writers import write_json_lines
from tests.support.proc import LIMIT_S
from tests.support.surface import Differences, public_modules

NAMES = {
    "": """DataLoader DataLoaderIterator DatasetIterator IterDataset MapDataset MultiprocessingOptions ReadOptions Record
        RecordMetadata config load checkpoint constants experimental multiprocessing python samplers sharding sources
        transforms AUTOTUNE DatasetOptions WeightSchedule as_grain device monitoring text operations
        ElasticIterator device_put pick_performance_config BadRecord ErrorPolicy verify in_step stop_together RayOptions
        open diagnose exporters""",
    "images": """CenterCrop ColorJitter Compose Crop CutMix Decode MixUp Normalize RandAugment RandomCrop
        RandomHorizontalFlip RandomResizedCrop Resize""",
    "text": "Tokenize",
    "audio": "Decode RandomClip seconds_of",
    "video": "Decode RandomClip seconds_of",
    "checkpoint": "CheckpointHandler CheckpointRestore CheckpointSave merge",
    "constants": "DATASET_INDEX EPOCH INDEX META_FEATURES RECORD RECORD_KEY SEED",
    "multiprocessing": "MultiprocessingOptions SharedMemoryArray SharedMemoryArrayMetadata",
    "samplers": "IndexSampler Sampler SequentialSampler",
    "sharding": "NoSharding ShardByJaxProcess ShardBySharding ShardOptions",
    "sources": """Address ArrayDataSource ArrayRecordDataSource ArrowDataSource BagzDataSource CsvDataSource
        ExampleDataSource ExampleParser Feature parse_example parse_sequence_example TorchDataSource
        Hdf5DataSource HuggingFaceDataSource HuggingFaceIterDataset IdxDataSource ImageFolderDataSource
        InMemoryDataSource JsonLinesDataSource JsonLinesIterDataset NpyDataSource NpzDataSource ParquetDataSource
        ParquetIterDataset RandomAccessDataSource RangeDataSource SharedMemoryDataSource SqlDataSource
        TFRecordDataSource TFRecordIterDataset TableBatches TextLinesDataSource TextLinesIterDataset TfdsDataSource
        TorchIterDataset ZarrDataSource from_generator open shuffled_groups write_array_record write_parquet
        write_tar write_tfrecord DecodeSample TarDataSource TarIterDataset AudioDataSource VideoDataSource""",
    "transforms": """Batch DatasetSelectionMap Filter FlatMap Map MapWithIndex RandomMap SeedGlobals TfRandomMap Transformation
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
NEEDS_ORBAX = ("CheckpointHandler", "CheckpointRestore", "CheckpointSave")

# Every difference of the wheel's names and parameters from ours: where, the names, what it is, and the reason.
DIFFERENCES = (
    ("", "DataLoaderIterator", "state is None", "it may be left out"),
    (
        "IterDataset.",
        "prefetch",
        "multiprocessing_options is keyword-only",
        "the first argument may also be a number of elements; options are taken in its place, or by their name",
    ),
    (
        "experimental.",
        "pick_performance_config",
        "ram_budget_mb is None; max_workers is None; max_buffer_size is None",
        "they may be left out",
    ),
    (
        "monitoring.",
        """annotations fast_monitoring monitoring_base record_autotune_node_throughput record_autotune_optimization_latency
        record_autotune_parameter record_autotune_usl_coeff record_bytes_read_and_latency record_framework_type
        set_debug_server_ports""",
        "is missing",
        "what Grain records of itself, and how",
    ),
)
LISTED = {f"{where}{name}: {said}" for where, names, said, _ in DIFFERENCES for name in names.split()}


def namespace(package, name):
    return importlib.import_module(f"{package.__name__}.{name}" if name else package.__name__)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name):
    module = namespace(headrace, name)
    for each in NAMES[name].split():
        if each.endswith(NEEDS_ORBAX):
            pytest.importorskip("orbax.checkpoint")
        assert getattr(module, each) is not None, f"{module.__name__}.{each}"


@pytest.mark.parametrize("name", ["", "audio", "checkpoint", "experimental", "images", "python", "sources", "video"])
def test_no_public_name_appears_unseen(name):
    """In the modules that are names only."""
    module = sys.modules.get(f"headrace.compat.grain.{name}") or namespace(headrace, name)
    exported = re.findall(
        r"import \w+ as ([a-zA-Z]\w*)|^(?:class|def) ([a-zA-Z]\w*)|^([a-zA-Z]\w*) = ", inspect.getsource(module), re.M
    )
    later = getattr(module, "_MODULE_OF", ())
    assert {each for groups in exported for each in groups if each} | {*later} <= set(NAMES[name].split())


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("orbax.checkpoint")
    return [f"{name}: {said}" for name, said in Differences().packages(grain, headrace).items()]


def test_the_wheels_names_and_parameters_are_ours(found):
    assert set(found) - LISTED == set()


def test_each_difference_that_is_listed_is_there(found):
    assert LISTED - set(found) == set()


def test_every_public_module_of_the_wheel_is_compared():
    assert set(public_modules(grain)) == {*NAMES, "python.experimental", "monitoring", "proto"} - {
        "audio",
        "images",
        "text",
        "video",
    }


class Theirs:
    def same(self, a, b=1, *, c=None): ...

    def order(self, a, b): ...

    def keyword(self, *, a): ...

    def default(self, a=1): ...

    def no_default(self, a): ...

    def more(self, a): ...

    def fewer(self, a, b): ...

    @property
    def size(self): ...

    def missing(self): ...


class Ours:
    def same(self, a, b=1, d=2, *, c=None): ...

    def order(self, b, a): ...

    def keyword(self, a): ...

    def default(self, a=2): ...

    def no_default(self, a=1): ...

    def more(self, a, b): ...

    def fewer(self, a): ...

    def size(self): ...


def test_what_counts_as_a_difference():
    seen = Differences()
    for name in vars(Theirs):
        if not name.startswith("_"):
            seen.names(name, Theirs, Ours, name)
    assert seen.found == {
        "order": "takes self, b, a in this order",
        "keyword": "a is positional or keyword",
        "default": "a is 2",
        "no_default": "a is 1",
        "more": "needs b",
        "fewer": "has no b",
        "size": "is no property",
        "missing": "is missing",
    }


def test_options_of_workers_by_place_and_by_name():
    ds = headrace.MapDataset.range(6).to_iter_dataset()
    options = headrace.MultiprocessingOptions(num_workers=1)
    for prefetched in (ds.prefetch(options), ds.prefetch(multiprocessing_options=options)):
        assert "mp_prefetch" in repr(prefetched)
        assert list(prefetched) == list(range(6))


def test_options_have_the_wheels_defaults():
    ours, theirs = headrace.DatasetOptions(), grain.experimental.DatasetOptions()
    for name in inspect.signature(grain.experimental.DatasetOptions).parameters:
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert getattr(mine, "name", mine) == getattr(other, "name", other)


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
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert run.stdout == "True\n"


def test_importing_loads_no_optional_dependency():
    script = (
        "import sys, headrace, headrace.python, headrace.experimental; "
        "print([m for m in ('jax', 'torch', 'orbax', 'pyarrow', 'array_record', 'tensorflow', 'grain', 'flax') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True)
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
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert run.stdout == "True\n", run.stderr[-2000:]


def test_any_module_of_grain_is_headraces():
    spec = headrace.loader.__spec__
    with headrace.as_grain():
        import grain.loader
        import grain.python.experimental as nested

        assert nested is headrace.experimental
        assert grain.loader is headrace.loader
        with pytest.raises(ModuleNotFoundError, match="`grain` is an alias of Headrace here"):
            import grain.nothing
    assert headrace.loader.__name__ == "headrace.loader"
    assert headrace.loader.__spec__ is spec
    assert "MapTransform" in dir(headrace)


def test_sources_show_their_paths(tmp_path):
    path = tmp_path / ("a-long-name-" * 10) / "a.jsonl"
    write_json_lines([{"x": 1}, {"x": 2}], path)
    ds = headrace.MapDataset.source(path)
    stream = headrace.sources.JsonLinesIterDataset(path).map(str)
    for text in (repr(ds), str(ds.explain()), repr(headrace.load(path)), repr(stream), str(stream.explain())):
        assert str(path) in text
        assert "hash" not in text


def test_states_of_loaders_still_name_sources_by_what_older_versions_wrote(tmp_path):
    write_json_lines([{"x": 1}, {"x": 2}], tmp_path / "a.jsonl")
    loader = headrace.load(tmp_path / "a.jsonl", num_epochs=1)
    state = json.loads(iter(loader).get_state())
    assert re.fullmatch(
        r"JsonLinesDataSource\(num_files=1, num_lines=2, hash_of_paths=[0-9a-f]{40}\)", state["data_source"]
    )


def test_parts_of_a_mix_show_their_names_and_all_weights():
    part = headrace.MapDataset.range(9).to_iter_dataset()
    steps = {1000 * k: {"web": 1, "code": 2 + k} for k in range(9)}
    ds = headrace.IterDataset.mix({"web": part, "code": part}, headrace.WeightSchedule(steps))
    for text in (repr(ds), str(ds.explain())):
        assert "    'code': MapDataset.range(9)" in text
        assert "    'web': MapDataset.range(9)" in text
        assert all(str(weights) in text for weights in steps.values())
