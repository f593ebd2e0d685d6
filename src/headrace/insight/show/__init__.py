"""Elements and datasets as people look at them: as text for a terminal, and as HTML for notebooks and pages.

`element_text` and `element_html` show one element, `elements_text` and `elements_html` several, `dataset_html` a
pipeline with its first element, and `show` prints or displays elements. In HTML, every text that comes from data is
escaped, and pictures and sounds are data URLs, so a fragment needs nothing else.
"""

from headrace.insight.show.pipeline import dataset_html as dataset_html
from headrace.insight.show.pipeline import show as show
from headrace.insight.show.render import element_html as element_html
from headrace.insight.show.render import element_text as element_text
from headrace.insight.show.render import elements_html as elements_html
from headrace.insight.show.render import elements_text as elements_text
