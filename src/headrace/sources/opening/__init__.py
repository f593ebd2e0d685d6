"""Opens data in the right format: the suffix says which one to expect, and the first bytes confirm it.

If they disagree, the first bytes decide, if they are those of a format. Libraries and readers are imported when a file
of their format is opened.
"""

from headrace.sources.opening.folder_splits import saved_splits as saved_splits
from headrace.sources.opening.folder_splits import splits_of as splits_of
from headrace.sources.opening.formats import FORMATS as FORMATS
from headrace.sources.opening.picking import HAVE_SPLITS as HAVE_SPLITS
from headrace.sources.opening.picking import examples_in as examples_in
from headrace.sources.opening.picking import open as open
from headrace.sources.opening.picking import parts_of as parts_of
from headrace.sources.opening.picking import paths_of as paths_of
