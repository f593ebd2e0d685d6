"""How operations are computed: blocks, index programs, kernels for random access, and streams."""
