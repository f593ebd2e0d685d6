"""Elements of a pipeline in a folder, as `cache(path)` keeps them: as they were, with their types, dtypes and shapes.

Elements that are alike are columns: `column-0`, `column-1`, … have the rows of one array each. Others are records:
`records` has them one after the other, and `offsets` says where each begins. `manifest.json` says how they are laid
out. A folder appears under its name when it is complete. No code is stored, so none is run when it is read.
"""

from headrace.sources.kept_elements.folder import Folder as Folder
from headrace.sources.kept_elements.reading import KeptElements as KeptElements
