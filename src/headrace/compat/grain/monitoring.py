"""Counters and gauges for code that uses Grain's; their numbers stay in this process.

>>> reads = Counter("/my/reads", Metadata(description="Files read"), fields=[("kind", str)])
>>> reads.Increment("train")
>>> reads.IncrementBy(2, "train")
>>> reads.Get("train"), reads.Get("eval")
(3, 0)
"""

import enum
import threading
from typing import Any


class Units(enum.Enum):
    """What a number counts.

    >>> Metadata("Bytes read", units=Units.BYTES).units
    <Units.BYTES: 6>
    """

    SECONDS = enum.auto()
    MILLISECONDS = enum.auto()
    MICROSECONDS = enum.auto()
    NANOSECONDS = enum.auto()
    BITS = enum.auto()
    BYTES = enum.auto()


class Metadata:
    """The description of a metric, and anything else about it as attributes.

    >>> Metadata("Files read").description
    'Files read'
    """

    def __init__(self, description: str = "", **kwargs: Any):
        self.description = description
        self.__dict__.update(kwargs)


class Bucketer:
    """The buckets of an `EventMetric`.

    >>> Bucketer.PowersOf(2.0).type
    'PowersOf'
    """

    def __init__(self, *args: Any, bucketer_type: str | None = None, **kwargs: Any):
        self.args = args
        self.kwargs = kwargs
        self.type = bucketer_type

    @classmethod
    def PowersOf(cls, base: float) -> "Bucketer":
        """Buckets that end at the powers of a number."""
        return cls(base, bucketer_type="PowersOf")


class _Cells:
    """Values by the fields that they belong to."""

    def __init__(self, name: str, metadata: Metadata | None = None, *args: Any, **kwargs: Any):
        self.name = name
        self.metadata = metadata
        self._values: dict[tuple[Any, ...], Any] = {}
        self._lock = threading.Lock()

    def Get(self, *args: Any, **kwargs: Any) -> Any:
        """The value for these fields."""
        return self._values.get(_fields(args, kwargs), 0)

    def ClearAll(self) -> None:
        """Removes all values."""
        self._values.clear()

    def _add(self, value: Any, fields: tuple[Any, ...]) -> None:
        with self._lock:
            self._values[fields] = self._values.get(fields, 0) + value


class Counter(_Cells):
    """A number that grows.

    >>> reads = Counter("/my/reads", Metadata("Files read"))
    >>> reads.Increment()
    >>> reads.Get()
    1

    Differs from Grain: numbers stay in this process.
    """

    def Increment(self, *args: Any, **kwargs: Any) -> None:
        """Adds 1 for these fields."""
        self._add(1, _fields(args, kwargs))

    def IncrementBy(self, value: float, *args: Any, **kwargs: Any) -> None:
        """Adds a number for these fields."""
        self._add(value, _fields(args, kwargs))


class EventMetric(_Cells):
    """A sum of values.

    >>> latency = EventMetric("/my/latency", Metadata("Seconds"))
    >>> latency.Record(0.5)
    >>> latency.Get()
    0.5
    """

    def Record(self, value: float, *args: Any, **kwargs: Any) -> None:
        """Adds a value for these fields."""
        self._add(value, _fields(args, kwargs))


class Metric(_Cells):
    """A number that code sets.

    >>> depth = Metric("/my/depth", int)
    >>> depth.Set(3)
    >>> depth.Get()
    3
    """

    def __init__(
        self, name: str, value_type: type = float, metadata: Metadata | None = None, *args: Any, **kwargs: Any
    ):
        super().__init__(name, metadata, *args, **kwargs)
        self.value_type = value_type

    def Set(self, value: Any, *args: Any, **kwargs: Any) -> None:
        """Sets the number for these fields."""
        self._values[_fields(args, kwargs)] = value


def get_monitoring_root() -> None:
    """The `root` of metrics: there is none.

    >>> get_monitoring_root() is None
    True
    """


def setup_telemetry() -> None:
    """Has no effect: nothing leaves the process.

    >>> setup_telemetry()
    """


def _fields(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    return (*args, *sorted(kwargs.items()))
