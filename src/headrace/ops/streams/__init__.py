"""How streams are computed: one file for each file of `_ops/`, which registers its operations on import."""

# gone
# gone
# gone
# gone
# gone
# gone
# gone
# gone
# gone
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
