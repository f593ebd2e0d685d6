"""Reads a data set once, in a process of its own, and says which files and records are damaged.

`check` starts the process (`process`) that reads (`reading`); if that dies or hangs, it names the record and starts
another one, which goes on after it.
"""

from headrace.sources.verification.check import verify as verify
from headrace.sources.verification.report import Damage as Damage
from headrace.sources.verification.report import Part as Part
from headrace.sources.verification.report import Verification as Verification
