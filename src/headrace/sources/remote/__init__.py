"""Remote files: `s3://`, `gs://`, `http://`, `memory://`, `zip://` and all other protocols of fsspec.

Reads are cut into blocks. Blocks in the cache folder are not fetched again, and the others are fetched by several
concurrent requests. Transient faults (a dropped connection, a busy server, a timeout) are retried a bounded number of
times, with increasing waits; other faults raise at once. So does a file that is replaced while it is open: all bytes
that are read or cached belong to one version.

| file | |
|---|---|
| `addresses` | what an address or a pattern means, and what its server says about it |
| `fetching` | bytes of remote files |
| `cache` | a folder of limited size, which several processes may share |
| `reading` | files by offset, as streams, and as local copies |
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
