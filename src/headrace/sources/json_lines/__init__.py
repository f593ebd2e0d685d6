"""JSON lines and plain text: an element is a line of the files, one file after the other.

A line is UTF-8 and ends with `\\n`, `\\r\\n`, or its file; a byte order mark at the front of a file is passed over.
In JSON lines, a line of nothing but white space is no element; in text, it is one like any other.

| file | |
|---|---|
| `lines` | what a line is taken for, and the error for one that does not parse |
| `index` | where the lines of a file begin, found once by a scan and kept |
| `random_access` | lines by index |
| `in_order` | lines as a stream |
| `plain` | the plain bytes of files, compressed or not, from any offset on |
"""

from headrace.sources.json_lines.in_order import JsonLinesIterDataset as JsonLinesIterDataset
from headrace.sources.json_lines.in_order import TextLinesIterDataset as TextLinesIterDataset
from headrace.sources.json_lines.random_access import JsonLinesDataSource as JsonLinesDataSource
from headrace.sources.json_lines.random_access import TextLinesDataSource as TextLinesDataSource
