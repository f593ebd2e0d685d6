"""How streams are computed: one file for each file of `ops/`, which registers its operations on import."""

from headrace.ops.streams import buffer_streams as buffer
from headrace.ops.streams import combined_streams as combine
from headrace.ops.streams import element_streams as element
from headrace.ops.streams import global_batch_streams as global_batch
from headrace.ops.streams import group_streams as group
from headrace.ops.streams import order_streams as order
from headrace.ops.streams import size_batch_streams as by_size
from headrace.ops.streams import source_streams as source
from headrace.ops.streams import weighed_mix_streams as weighed_mix
from headrace.ops.streams.element_streams import FilterWatch as FilterWatch
from headrace.ops.streams.stream import At as At
from headrace.ops.streams.stream import Context as Context
from headrace.ops.streams.stream import MissingElement as MissingElement
from headrace.ops.streams.stream import Position as Position
from headrace.ops.streams.stream import Run as Run
from headrace.ops.streams.stream import Stream as Stream
from headrace.ops.streams.stream import UnaryStream as UnaryStream
from headrace.ops.streams.stream import open_stream as open_stream
from headrace.ops.streams.stream import stream_of as stream_of
