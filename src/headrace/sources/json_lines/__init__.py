"""JSON lines and plain text: each line of the files is an element, one file after the other.

A line is UTF-8 and ends with `\\n`, `\\r\\n`, or the end of the file; a byte order mark at the start is skipped. In
JSON lines, blank lines are skipped; in text, they are elements like any other.

| file | |
|---|---|
| `lines` | how a line is parsed, and the error for one that does not parse |
| `notes` | what elements have that JSON has not, and how they get it back |
| `index` | where the lines of a file begin, found by one scan and stored |
| `random_access` | lines by index |
| `in_order` | lines as a stream |
| `plain` | the decompressed bytes of files from any offset on |
| `zstd` | frames of zstd, decompressed a few blocks at a time |
"""

from headrace.sources.json_lines.in_order import JsonLinesIterDataset as JsonLinesIterDataset
from headrace.sources.json_lines.in_order import TextLinesIterDataset as TextLinesIterDataset
from headrace.sources.json_lines.random_access import JsonLinesDataSource as JsonLinesDataSource
from headrace.sources.json_lines.random_access import TextLinesDataSource as TextLinesDataSource
