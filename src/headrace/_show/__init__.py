"""Elements and datasets as people look at them: as text for a terminal, and as HTML for notebooks and pages.

`element_text` and `element_html` show one element. In HTML, every text that comes from data is escaped, and pictures
and sounds are data URLs, so a fragment needs nothing else.
"""

from headrace._show.element import element_html as element_html
from headrace._show.element import element_text as element_text
