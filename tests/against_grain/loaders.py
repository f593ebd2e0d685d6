"""Random loaders and elastic runs, as Python text."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.against_grain.programs import SEEDS, map_programs

Draw = Callable[[Any], Any]
OPERATIONS = (
    "OneMore()", "Kept()", "Drawn()", "Children()", "Batch(2)", "Batch(3, drop_remainder=True)",
    "Batch(4, batch_fn=numbers)", "Failing()",
)  # fmt: skip
RECORDS = (
    "range({n})",
    "np.arange({n}, dtype='int16')",
    "sequences([(i % 4, 1) for i in range({n})])",
    "list(range({n}))",
)
READ = ("read(None, 0)", "read(0, 0)", "read(2, 3)")


@st.composite
def loaders(draw: Draw) -> str:
    """A `DataLoader` in shards of one size, which may be given to it, to its sampler or to both."""
    count = draw(st.integers(1, 3))
    n = draw(st.integers(5, 20)) * count + draw(st.sampled_from([0, 0, 1]))
    drop = n % count > 0 or draw(st.booleans())
    shard = f", shard_options=ShardOptions({draw(st.integers(0, count - 1))}, {count}, drop_remainder={drop})"
    on_sampler, on_loader = draw(st.sampled_from([("", ""), (shard, ""), ("", shard), (shard, shard)]))
    if draw(st.integers(0, 3)) == 0:
        sampler = f"SequentialSampler({n}{on_sampler})"
    else:
        shuffle, epochs = draw(st.booleans()), draw(st.integers(1, 3))
        seed = draw(st.none() | SEEDS) if not shuffle else draw(SEEDS)
        sampler = f"IndexSampler({n}, shuffle={shuffle}, num_epochs={epochs}, seed={seed}{on_sampler})"
    operations = ", ".join(draw(st.lists(st.sampled_from(OPERATIONS), max_size=4)))
    source = draw(st.sampled_from(RECORDS)).format(n=n)
    return (
        f"DataLoader(data_source={source}, sampler={sampler}, operations=[{operations}]"
        f"{on_loader}, read_options={draw(st.sampled_from(READ))})"
    )


@st.composite
def elastic_runs(draw: Draw) -> str:
    """An elastic iterator with one shard: the rows of several are Grain's in another order."""
    batch, ds = draw(st.integers(1, 6)), draw(map_programs(max_ops=2, depth=1))
    return f"ElasticIterator({ds}, {batch}, ShardOptions(0, 1), read_options=read(0, 0))"
