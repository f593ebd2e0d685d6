"""Messages in the form of Grain's, for programs that exchange them."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """The modules of messages, which need `protobuf`, when they are asked for."""
    if name == "execution_summary_pb2":
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
