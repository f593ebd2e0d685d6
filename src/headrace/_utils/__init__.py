"""What any part may use: trees of arrays, random numbers, threads, signals, shared memory, addresses."""
