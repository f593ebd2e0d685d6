"""The messages between a consumer and its workers: short ones over a socket, which say where in a slot the rest is."""

import struct

TASK = struct.Struct("<qqqq")  # number, slot, and the extent in that slot; a negative start: the task follows
ANSWER = struct.Struct("<qqqqd")  # number, kind, extent, seconds
READY, RESULT, FAILURE, SKIPPED, NO_START = range(5)
MESSAGE_BYTES = 1 << 17  # no message is longer
STARTED_AS_WORKER = "HEADRACE_STARTED_AS_WORKER"  # an environment variable, which a worker takes out at once
