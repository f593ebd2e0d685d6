"""Workers on a Ray cluster: `cluster` (which Ray), `actor` (a worker), `pool` (tasks given out, answers taken in)."""
