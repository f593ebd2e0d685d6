"""What is here because Grain has it: its names, its settings, its states, and `as_grain()`.

These modules are also importable from where Grain has them: `headrace.experimental`, `headrace.python` and so on.
"""
