"""One process of a distributed JAX program.

python -m tests.hosts.process PROGRAM INDEX COUNT PORT FILE ARGS
"""

import faulthandler
import json
import signal
import sys
from pathlib import Path

import jax

from tests.hosts import programs


def main() -> None:
    program, index, count, port, file, args = sys.argv[1:]
    faulthandler.register(signal.SIGUSR1)
    jax.distributed.initialize(
        f"127.0.0.1:{port}", num_processes=int(count), process_id=int(index), initialization_timeout=300
    )
    result = getattr(programs, program)(*json.loads(args))
    Path(file).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
