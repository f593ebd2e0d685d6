"""Elements of a pipeline in a folder, as `cache(path)` keeps them: as they were, with their types, dtypes and shapes.

`records` has the elements one after the other, `offsets` says where each begins, and `manifest.json` how they are laid
out. A folder appears under its name when it is complete. No code is stored, so none is run when it is read.
"""

from headrace.sources.kept_elements.folder import Folder as Folder
from headrace.sources.kept_elements.reading import KeptElements as KeptElements
