"""Settings of the whole process, by name."""

from typing import Any

from headrace.errors import PipelineError

_DEFAULTS: dict[str, Any] = {
    "py_debug_mode": False,
    "py_dataset_visualization_output_dir": None,
    "py_traceback_filtering": "auto",
}


class Config:
    """Settings by name, as in Grain.

    With `py_debug_mode`, iterators made from then on measure all that they compute, and log their statistics (level
    INFO, logger `headrace`) every minute and when they are closed. With `py_dataset_visualization_output_dir` as well,
    they write them to that folder, as reports for a browser. `py_traceback_filtering` has no effect.

    >>> config.update("py_debug_mode", True)
    >>> config.py_debug_mode, config.get_or_default("py_traceback_filtering")
    (True, 'auto')
    >>> config.update("py_debug_mode", False)

    Differs from Grain: `py_traceback_filtering` has no effect.
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

    def __getattr__(self, name: str) -> Any:
        """A setting's value, as an attribute."""
        if name in _DEFAULTS:
            return self._values[name]
        raise AttributeError(f"There is no setting {name!r}; there are {sorted(_DEFAULTS)}.")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_DEFAULTS})

    def _check(self, name: str) -> None:
        if name not in _DEFAULTS:
            raise PipelineError(f"There is no setting {name!r}; there are {sorted(_DEFAULTS)}.")


config = Config()
