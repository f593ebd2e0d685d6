"""Grain's protobuf messages, for programs that exchange them."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Imports the messages on first use: they need `protobuf`."""
    if name == "execution_summary_pb2":
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
