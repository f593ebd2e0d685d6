"""States of iterators: positions as JSON and back, and what identifies the state of another pipeline."""
