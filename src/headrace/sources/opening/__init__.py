"""Opens data by what it is: the suffix says which format to expect, and the first bytes whether that is so.

Where the two disagree, the first bytes are right, if they are those of a format. Libraries and readers are imported
when a file of their format is opened.
"""

from headrace.sources.opening.formats import FORMATS as FORMATS
from headrace.sources.opening.picking import open as open
from headrace.sources.opening.picking import paths_of as paths_of
