"""Real `jax.distributed` programs of several processes on this machine."""
