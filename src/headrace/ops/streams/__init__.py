"""How streams are computed: one file for each file of `ops/`, which registers its operations on import."""

from headrace.ops.streams import buffer as buffer
from headrace.ops.streams import by_size as by_size
from headrace.ops.streams import combine as combine
from headrace.ops.streams import element as element
from headrace.ops.streams import global_batch as global_batch
from headrace.ops.streams import group as group
from headrace.ops.streams import order as order
from headrace.ops.streams import source as source
from headrace.ops.streams import weighed_mix as weighed_mix
from headrace.ops.streams.base import At as At
from headrace.ops.streams.base import Context as Context
from headrace.ops.streams.base import MissingElement as MissingElement
from headrace.ops.streams.base import Position as Position
from headrace.ops.streams.base import Run as Run
from headrace.ops.streams.base import Stream as Stream
from headrace.ops.streams.base import UnaryStream as UnaryStream
from headrace.ops.streams.base import open_stream as open_stream
from headrace.ops.streams.base import stream_of as stream_of
from headrace.ops.streams.element import FilterWatch as FilterWatch
