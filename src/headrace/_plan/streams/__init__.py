"""How streams are computed: one file for each file of `_ops/`, which registers its operations on import."""

from headrace._plan.streams import buffer as buffer
from headrace._plan.streams import by_size as by_size
from headrace._plan.streams import combine as combine
from headrace._plan.streams import element as element
from headrace._plan.streams import global_batch as global_batch
from headrace._plan.streams import group as group
from headrace._plan.streams import order as order
from headrace._plan.streams import source as source
from headrace._plan.streams import weighed_mix as weighed_mix
from headrace._plan.streams.base import At as At
from headrace._plan.streams.base import Context as Context
from headrace._plan.streams.base import MissingElement as MissingElement
from headrace._plan.streams.base import Position as Position
from headrace._plan.streams.base import Run as Run
from headrace._plan.streams.base import Stream as Stream
from headrace._plan.streams.base import UnaryStream as UnaryStream
from headrace._plan.streams.base import open_stream as open_stream
from headrace._plan.streams.base import stream_of as stream_of
from headrace._plan.streams.element import FilterWatch as FilterWatch
