"""Compatibility with Grain: its names, its settings, its states, and `as_grain()`.

These modules can also be imported under Grain's names: `headrace.experimental`, `headrace.python` and so on.
"""
