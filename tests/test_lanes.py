"""Lanes and global batches: the same for any number of processes, as `reference.py` defines them."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace import checkpoint
from headrace.sharding import ShardOptions
from headrace.testing import assert_equal
from tests import reference
from tests.chains import STREAM_OPS, map_datasets

IN_LANES = sorted(set(STREAM_OPS) - {"user", "interleave lazily", "global_batch", "global_batch of lanes", "cache"})
HOSTS = (1, 2, 3, 4, 6)


def shards(ds, batch_size, num_hosts, **options):
    return [ds.global_batch(batch_size, ShardOptions(h, num_hosts), batch_fn=list, **options) for h in range(num_hosts)]


def joined(iterators):
    """The next global batch; `None` when all have ended."""
    rows = [next(iterator, None) for iterator in iterators]
    return None if None in rows else [x for part in rows for x in part]


@st.composite
def laned_streams(draw, max_ops=3):
    """A random stream of several lanes, and their number."""
    num_lanes = draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
    ds = draw(map_datasets(max_ops=2)).take(60).repeat(3).to_iter_dataset(num_lanes=num_lanes)
    for name in draw(st.lists(st.sampled_from(IN_LANES), max_size=max_ops)):
        ds = STREAM_OPS[name](ds, draw(st.integers(0, 20)))
    return ds.take(100 * num_lanes), num_lanes


@given(laned_streams(), st.sampled_from(HOSTS), st.integers(1, 3), st.lists(st.sampled_from(HOSTS), max_size=3))
def test_global_batches_do_not_depend_on_the_number_of_hosts(laned, num_hosts, size, later):
    ds, num_lanes = laned
    batch_size = size * np.lcm.reduce([num_lanes, *HOSTS])
    whole = list(reference.stream(ds.global_batch(batch_size, batch_fn=list)._op))
    state = None
    for step, hosts in enumerate([num_hosts, *later]):
        iterators = [iter(each) for each in shards(ds, batch_size, hosts, num_batches=len(whole))]
        for iterator in iterators:
            if state is not None:
                iterator.set_state(state)
        batch = joined(iterators)
        if step == len(whole):
            assert batch is None
            return
        assert_equal(batch, whole[step])
        state = checkpoint.merge([json.loads(json.dumps(each.get_state())) for each in iterators])
