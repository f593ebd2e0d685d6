"""Settings of the whole process, by name."""

from typing import Any

from headrace.errors import PipelineError

_DEFAULTS: dict[str, Any] = {"py_debug_mode": False, "py_dataset_visualization_output_dir": None}


class Config:
    """Settings by name: kept for code that sets them; no setting changes a value that comes out.

    >>> config.update("py_debug_mode", True)
    >>> config.get_or_default("py_debug_mode")
    True
    >>> config.update("py_debug_mode", False)
    """

    def __init__(self):
        self._values = dict(_DEFAULTS)

    def update(self, name: str, value: Any) -> None:
        """Sets a setting."""
        self._check(name)
        self._values[name] = value

    def get_or_default(self, name: str) -> Any:
        """A setting's value."""
        self._check(name)
        return self._values[name]

    def _check(self, name: str) -> None:
        if name not in _DEFAULTS:
            raise PipelineError(f"There is no setting {name!r}; there are {sorted(_DEFAULTS)}.")


config = Config()
