"""Files behind addresses: `s3://`, `gs://`, `http://`, `memory://`, `zip://` and whatever else fsspec knows.

Reads are cut into blocks; those that the cache folder has are not fetched again, and what is fetched comes in several
requests at once. A fault that may pass (a dropped connection, a busy server, a timeout) is tried again with longer and
longer waits, a bounded number of times; any other is an error at once. A file that is replaced while it is open is an
error too: what is handed over, and what the cache keeps, is all of one version.

| file | |
|---|---|
| `addresses` | what an address or a pattern means, and what its server says of it |
| `faults` | which faults may pass, and the waits between tries |
| `fetching` | bytes from far away |
| `cache` | a folder of pieces that never holds more bytes than it may, also where several processes share it |
| `reading` | files by offset, as streams, and as copies on this machine |
"""

from headrace.errors import RemoteError as RemoteError
from headrace.sources.remote.addresses import Address as Address
from headrace.sources.remote.addresses import file_name as file_name
from headrace.sources.remote.addresses import is_folder as is_folder
from headrace.sources.remote.addresses import listed as listed
from headrace.sources.remote.addresses import matches as matches
from headrace.sources.remote.addresses import object_name as object_name
from headrace.sources.remote.reading import RemoteFile as RemoteFile
from headrace.sources.remote.reading import fingerprint as fingerprint
from headrace.sources.remote.reading import local_copy as local_copy
from headrace.sources.remote.reading import open_stream as open_stream
