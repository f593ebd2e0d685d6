"""How pipelines are computed, and where: in the consumer, in threads, in worker processes."""
