"""How functions and classes travel between a consumer and its workers if the other process cannot import them."""

from typing import Any

import cloudpickle

received_classes: dict[type, str] = {}
"""In a worker: the classes that came with its plan, and the names that cloudpickle gave them in both processes."""


class ClassPickler(cloudpickle.Pickler):
    """Pickles functions and classes by value if other processes cannot import them, but received classes by name.

    By value, the worker's copy of a class would overwrite the consumer's own.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj in received_classes:
            return _class_of_consumer, (received_classes[obj],)
        return super().reducer_override(obj)


def _class_of_consumer(name: str) -> type:
    return cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[name]
