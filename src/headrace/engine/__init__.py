"""How a pipeline runs: its plan, its iteration, threads, worker processes, and what tunes them."""
